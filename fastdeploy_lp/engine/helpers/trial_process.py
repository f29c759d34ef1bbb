"""`python -m fastdeploy_lp.engine.helpers.trial_process`: checks requests with the code of processors' authors.

A check that ends, stalls or crashes its process affects only this one. `Trials` starts it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from queue import SimpleQueue
from typing import IO

import cloudpickle
import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.helpers.args_validator import args_validator, served_tokenizer
from fastdeploy_lp.engine.helpers.frames import read_frame, write_frame
from fastdeploy_lp.logits_processor import (
    DeclaredProcessor,
    RequestArgsError,
    RequestArgsValidator,
    Selection,
    fastdeploy_compat,
    load_processors,
    vllm_compat,
)
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.platforms import shared_memory
from fastdeploy_lp.plugins import load_general_plugins
from fastdeploy_lp.request.sampling_params import SamplingParams

# Raised by the encoder for values that msgpack cannot represent.
UNSENDABLE = (TypeError, OverflowError, UnicodeEncodeError)


class TrialStart(msgspec.Struct):
    """The chain of processors to load.

    specs: in chain order. mandatory: names. pickled_processors: by SPEC, processors given as objects.
    """

    fd_config: FDConfig
    specs: list[str]
    mandatory: list[str] = []
    pickled_processors: dict[str, bytes] = {}


class Trial(msgspec.Struct):
    """A request to check, and what the operator imposes on it."""

    params: SamplingParams
    imposed: Imposed = NOTHING_IMPOSED


class Ready(msgspec.Struct, tag=True):
    """The chain is loaded."""


class Entering(msgspec.Struct, tag=True):
    """This processor's code is about to run; `path`: the request field that it checks."""

    processor: str
    path: str | None


class Accepted(msgspec.Struct, tag=True):
    """The request's validated selection."""

    selection: Selection


class Refused(msgspec.Struct, tag=True):
    """A refusal: the reason and the JSON path of the invalid field."""

    path: str | None
    reason: str


Reply = Ready | Entering | Accepted | Refused


class TrialProcess:
    """Runs trials one after the other, and writes the replies to `replies`."""

    def __init__(self, start: TrialStart, replies: IO[bytes]) -> None:
        self._replies = replies
        self._validator = _validator(start)
        # Everything is loaded: a process killed after this leaves no shared memory.
        shared_memory.remove_of(os.getpid())
        self._reply(Ready())

    def run(self, trial: Trial) -> None:
        """Checks a request; replies with each processor whose code is about to run, and with the result."""
        result: Reply
        try:
            result = Accepted(self._validator.validate_imposed(trial.params, trial.imposed, self._entering))
        except RequestArgsError as error:
            result = Refused(error.path, error.reason)
        try:
            self._reply(result)
        except UNSENDABLE as error:  # a model may read arguments as objects of any class
            self._reply(Refused(None, f"the arguments cannot be sent to the worker as their Params read them: {error}"))

    def _entering(self, processor: DeclaredProcessor, path: str | None) -> None:
        if processor.checks_with_own_code:
            self._reply(Entering(processor.name, path))

    def _reply(self, reply: Reply) -> None:
        write_frame(self._replies, msgspec.msgpack.encode(reply))


def main() -> None:
    """Reads one `TrialStart`, then replies to each `Trial`, until the other end closes the pipe."""
    # Ctrl-C in a terminal also reaches this process; the API process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output printed by processors goes to the log, not between replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    frames: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, frames), daemon=True).start()
    process = TrialProcess(msgspec.msgpack.decode(frames.get(), type=TrialStart), replies)
    while True:
        process.run(msgspec.msgpack.decode(frames.get(), type=Trial))


def processor_objects(start: TrialStart) -> dict[str, object]:
    """Returns the processors given as objects by SPEC, in a process that serves no model; its processors can load."""
    policy = start.fd_config.structured_outputs_config
    if policy.vllm_compat:
        vllm_compat.install()
    if policy.fastdeploy_compat:
        fastdeploy_compat.install()
    load_general_plugins()
    return {spec: cloudpickle.loads(data) for spec, data in start.pickled_processors.items()}


def _validator(start: TrialStart) -> RequestArgsValidator:
    objects, with_vllm = processor_objects(start), start.fd_config.structured_outputs_config.vllm_compat
    declared = load_processors(start.specs, objects, mandatory=start.mandatory, vllm_entry_points=with_vllm)
    for processor in declared:
        processor.dialect.ready_validation()
    return args_validator(start.fd_config, declared, served_tokenizer(start.fd_config))


def _receive(pipe: IO[bytes], frames: SimpleQueue[bytes]) -> None:
    """Queues the frames, and ends this process when the sending process ends.

    Runs in a thread, so that this works even while a check never returns.
    """
    while (content := read_frame(pipe)) is not None:
        frames.put(content)
    os._exit(0)


if __name__ == "__main__":
    main()
