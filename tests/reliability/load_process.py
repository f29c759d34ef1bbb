"""`python load_process.py KINDS SEED FIRST LAST FOLDER`: loads damaged models as a server does, KINDS as in `a,b`.

A few in one process after the other, each forked from one that has imported everything, with little more memory than
these models need; each model has a minute. A line of JSON tells what became of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reliability.damaged_files import DamagedModels
from reliability.fuzz_files import REFUSED, SERVED

import fastdeploy_lp.checkpoint.convert  # noqa: F401 - loaded here, once for all
from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import InputProcessor, Prompt
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.guided_decoding.compiler import UNSUITABLE
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

ROOM_BYTES = 1 << 30
# The answer of weights that are finite and too large, which are the file's own.
NO_TOKEN = "the model left no token that can be sampled"
# Models of one process, which is quicker than a process each and still has the memory of few.
BATCH = 10
SECONDS_EACH = 60
OPTIONS: dict[str, Any] = {"max_num_seqs": 2, "max_model_len": 64}


class FaultError(Exception):
    """Neither refused in one line nor served."""


class _Tracebacks(logging.Handler):
    """Remembers records with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note it if it has one."""
        if record.exc_info:
            self.seen.append(self.format(record))


def main(kinds: Sequence[str], seed: int, first: int, last: int, folder: Path) -> None:
    """Load the models `first` to `last` - 1 of each kind."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(folder / "printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    # From the user's cache: in a new one, every process would compile them.
    compiled_ops()
    os.environ["FASTDEPLOY_LP_CACHE"] = str(folder / "cache")
    for kind in kinds:
        for told in _of_kind(kind, seed, range(first, last), folder):
            print(json.dumps({"kind": kind, **told}), file=results, flush=True)


def _of_kind(kind: str, seed: int, numbers: range, folder: Path) -> Iterator[dict[str, Any]]:
    models = DamagedModels(kind, folder / kind)
    # Here, so that what only a first model needs is done once for all. A fork has none of the threads of grammars.
    outcome = loaded(str(models.whole), folder, guided=False)
    if outcome != SERVED:
        raise RuntimeError(f"the whole model is {outcome}")
    next_one = numbers.start
    while next_one < numbers.stop:
        batch = range(next_one, min(next_one + BATCH, numbers.stop))
        for told in _in_a_fork(batch, models, seed, folder):
            yield told
            next_one += 1


def _in_a_fork(numbers: range, models: DamagedModels, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """What became of each of these models, up to one that ended the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _limit_memory()
        with os.fdopen(writing, "w") as pipe:
            for number in numbers:
                signal.alarm(SECONDS_EACH)
                model, file = models.damaged(seed, number)
                # Threads of grammars stay, and their stacks count as memory: only those of one model have room.
                outcome = loaded(str(model), folder, guided=number == numbers.start)
                told = {"number": number, "file": file, "outcome": outcome}
                print(json.dumps(told), file=pipe, flush=True)
        os._exit(0)
    os.close(writing)
    ended = numbers.start
    with os.fdopen(reading) as pipe:
        for line in pipe:
            yield json.loads(line)
            ended += 1
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if ended < numbers.stop:
        yield {"number": ended, "file": "process", "outcome": f"it ended with status {code}"}


def loaded(model: str, folder: Path, *, guided: bool = True) -> str:
    """REFUSED, SERVED, or the fault; a traceback in the log is one, too."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    tracebacks = _Tracebacks()
    logging.getLogger().addHandler(tracebacks)
    try:
        outcome = _served(model, guided=guided)
        return f"a traceback in the log: {tracebacks.seen[0]}" if tracebacks.seen else outcome
    except FaultError as fault:
        return str(fault)
    except BaseException:  # noqa: BLE001 - panics of Rust are no Exceptions
        return traceback.format_exc()
    finally:
        logging.getLogger().removeHandler(tracebacks)


def _served(model: str, *, guided: bool) -> str:
    """As the API process and the worker do it; each tells in one line only what they do."""
    try:
        fd_config = EngineArgs(model=model, **OPTIONS).create_fd_config(show_progress=False)
        preparation = RequestPreparation(fd_config, [])
    except ValueError as error:
        return _refused(error)
    requests = _requests(preparation.inputs, guided=guided)
    try:
        engine = EngineCore(fd_config, LogitsProcessorChain([], fd_config))
    except CheckpointError as error:
        return _refused(error)
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for step in engine.step().steps:
            if step.error not in (None, NO_TOKEN) and UNSUITABLE not in step.error:
                raise FaultError(f"a request failed: {step.error}")
            preparation.tokenizer.decode(step.token_ids, skip_special_tokens=False)
    asyncio.run(preparation.close())
    return SERVED


def _refused(error: ValueError) -> str:
    if len(str(error).splitlines()) != 1:
        raise FaultError(f"more or less than one line: {error!r}")
    return REFUSED


def _requests(inputs: InputProcessor, *, guided: bool) -> list[AddRequest]:
    """A plain request and one of each kind that needs more of the tokenizer, unless they are refused with a 400.

    The worker alone compiles the grammar: a server's API process has it compiled by another one, which may crash.
    """

    def chat() -> Prompt:
        return inputs.chat_prompt([{"role": "user", "content": "Go on"}])

    tries = [
        (lambda: inputs.prompt([1, 2, 3]), SamplingParams(max_tokens=2, logprobs=2)),
        (lambda: inputs.prompt("the dog"), SamplingParams(max_tokens=2, stop=["x"], bad_words=["fox"])),
        (chat, SamplingParams(max_tokens=1)),
    ]
    if guided:
        regex = GuidedDecodingParams(regex="[a-z]+")
        tries.append((lambda: inputs.prompt([1, 2, 3]), SamplingParams(max_tokens=3, guided_decoding=regex)))
    found = []
    for number, (prompt, params) in enumerate(tries):
        try:
            made = prompt()
            settled = inputs.settle(params, made)
        except InvalidRequestError:
            continue
        grammar = settled.grammar.text if settled.grammar is not None else None
        found.append(AddRequest(str(number), made.token_ids, settled.params, settled.selection, grammar))
    return found


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(sys.argv[1].split(","), *(int(each) for each in sys.argv[2:5]), Path(sys.argv[5]))  # type: ignore[call-arg]
