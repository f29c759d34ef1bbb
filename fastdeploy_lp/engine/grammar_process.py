"""`python -m fastdeploy_lp.engine.grammar_process`: compiles grammars and computes their first masks, to try them.

The library cannot be interrupted. A grammar that takes too much time or memory, or crashes it, ends this process alone.
`GrammarProcesses` starts it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from queue import SimpleQueue

import msgspec

from fastdeploy_lp.engine.frames import read_frame, write_frame
from fastdeploy_lp.engine.grammar_messages import GrammarProgress, GrammarStart, GrammarTrial
from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler, GrammarError, GrammarMatcher
from fastdeploy_lp.guided_decoding.probe import MASK_SECONDS, WALK_SECONDS, probe
from fastdeploy_lp.guided_decoding.threads import GrammarThreads

MEMORY_BYTES = 1 << 30


def main() -> None:
    """One `GrammarStart`, then the `GrammarProgress` of each `GrammarTrial`, until the other end closes the pipe."""
    # Ctrl-C in a terminal reaches this process, too; the API process decides about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The timers of trials end the process.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    frames: SimpleQueue[bytes] = SimpleQueue()
    start = msgspec.msgpack.decode(read_frame(sys.stdin.buffer) or b"", type=GrammarStart)
    threads = GrammarThreads(1, "grammar", start.max_bytes)
    threads.submit(_work, start, frames)
    while (content := read_frame(sys.stdin.buffer)) is not None:
        frames.put(content)
    os._exit(0)


def _work(start: GrammarStart, frames: SimpleQueue[bytes]) -> None:
    """Try what arrives, in a thread with room for it, so that the main one notices the end of the other process."""
    try:
        compiler = GrammarCompiler(Path(start.directory), start.vocab_size, start.eos_token_ids, cache_size=1)
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
    # Processor time: one that waits for a busy machine is not to blame. No handler has to run for it to end a process.
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
    """Let the process grow by `MEMORY_BYTES`, where the system enforces that."""
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
