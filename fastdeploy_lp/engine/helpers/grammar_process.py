"""`python -m fastdeploy_lp.engine.helpers.grammar_process`: compiles grammars and computes their first masks.

The library cannot be interrupted. A grammar that takes too much time or memory, or crashes the library, ends only this
process. `GrammarProcesses` starts it."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec

from fastdeploy_lp.engine.helpers.frames import read_frame, write_frame
from fastdeploy_lp.guided_decoding.compiler import (
    MASK_SECONDS,
    WALK_SECONDS,
    GrammarCompiler,
    GrammarError,
    GrammarMatcher,
    probe,
)
from fastdeploy_lp.guided_decoding.threads import GrammarThreads


class GrammarStart(msgspec.Struct):
    """The model whose vocabulary the trials use, and the size limit of grammars in bytes."""

    directory: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_bytes: int


class GrammarTrial(msgspec.Struct):
    """A grammar to compile in at most `timeout` seconds of CPU time, and then to follow over some tokens."""

    text: str
    timeout: float


class GrammarProgress(msgspec.Struct):
    """The end of a stage: the start, then for each trial the compilation and, if it succeeded, the masks.

    refusal: why the grammar cannot be used, None if the stage succeeded.
    """

    refusal: str | None = None


MEMORY_BYTES = 1 << 30


def main() -> None:
    """Reads one `GrammarStart`, then answers each `GrammarTrial` with `GrammarProgress`, until the pipe closes."""
    # Ctrl-C in a terminal also reaches this process; the API process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A trial's timer ends the process.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    frames: SimpleQueue[bytes] = SimpleQueue()
    start = msgspec.msgpack.decode(read_frame(sys.stdin.buffer) or b"", type=GrammarStart)
    threads = GrammarThreads(1, "grammar", start.max_bytes)
    threads.submit(_work, start, frames)
    while (content := read_frame(sys.stdin.buffer)) is not None:
        frames.put(content)
    os._exit(0)


def _work(start: GrammarStart, frames: SimpleQueue[bytes]) -> None:
    """Tries grammars in a thread with enough stack, so that the main thread notices the end of the other process."""
    try:
        compiler = GrammarCompiler(Path(start.directory), start.vocab_size, start.eos_token_ids, cache_size=1)
        # Otherwise each trial is refused with the reason.
        with suppress(GrammarError):
            compiler.prepare()
        _limit_memory()
        _report(GrammarProgress())
        while True:
            _try(compiler, start, msgspec.msgpack.decode(frames.get(), type=GrammarTrial))
    finally:
        os._exit(1)


def _try(compiler: GrammarCompiler, start: GrammarStart, trial: GrammarTrial) -> None:
    matcher: GrammarMatcher | None = None
    refusal: str | None = None
    # CPU time, so that a busy machine causes no refusals. The default action ends the process without a handler.
    signal.setitimer(signal.ITIMER_PROF, trial.timeout)
    try:
        matcher = compiler.matcher(trial.text)
    except BaseException as error:  # noqa: BLE001 - a panic of the library, too, is this grammar's own
        refusal = _reason(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    _report(GrammarProgress(refusal))
    if matcher is None:
        return
    signal.setitimer(signal.ITIMER_PROF, WALK_SECONDS + MASK_SECONDS)
    try:
        probe(matcher, start.vocab_size, start.eos_token_ids)
    except BaseException as error:  # noqa: BLE001 - a panic of the library, too, is this grammar's own
        refusal = _reason(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    _report(GrammarProgress(refusal))


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, GrammarError) else f"{type(error).__name__}: {error}"[:1000]


def _limit_memory() -> None:
    """Limits the growth of the process to `MEMORY_BYTES`, if the system enforces it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        return


def _report(progress: GrammarProgress) -> None:
    write_frame(sys.stdout.buffer, msgspec.msgpack.encode(progress))


if __name__ == "__main__":
    main()
