"""`python -m fastdeploy_lp.engine.trial_process`: tries arguments on processors that have an instance for each request.

A constructor or a first call that ends, stalls or crashes the process does so to this one alone. `Trials` starts it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import IO

import cloudpickle
import msgspec

from fastdeploy_lp import shared_memory
from fastdeploy_lp.engine.trial_messages import Trial, TrialResult, TrialStart
from fastdeploy_lp.logits_processor import DeclaredProcessor, fastdeploy_compat, vllm_compat
from fastdeploy_lp.logits_processor.author_code import contained, described, printed
from fastdeploy_lp.logits_processor.model_facts import ModelFacts
from fastdeploy_lp.logits_processor.registry import load_processor
from fastdeploy_lp.plugins import load_general_plugins
from fastdeploy_lp.sampling_params import SamplingParams


def main() -> None:
    """One `TrialStart`, then a `TrialResult` for each `Trial`, until the other end closes the pipe."""
    # Ctrl-C in a terminal reaches this process, too; the API process decides about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Prints of processors go to the log, and not between results.
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    frames: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, frames), daemon=True).start()
    start = msgspec.msgpack.decode(frames.get(), type=TrialStart)
    declared = _declared(start)
    facts = ModelFacts.of(start.fd_config)
    # Everything is loaded: a process that is killed from now on leaves nothing.
    shared_memory.remove_of(os.getpid())
    _write(results, TrialResult())
    while True:
        _write(results, _tried(msgspec.msgpack.decode(frames.get(), type=Trial), declared, facts))


def _declared(start: TrialStart) -> dict[str, DeclaredProcessor]:
    policy = start.fd_config.structured_outputs_config
    if policy.vllm_compat:
        vllm_compat.install()
    if policy.fastdeploy_compat:
        fastdeploy_compat.install()
    load_general_plugins()
    found = {}
    for name, spec in start.specs.items():
        pickled = start.pickled_processors.get(spec)
        found[name] = load_processor(spec, None if pickled is None else cloudpickle.loads(pickled))
        found[name].dialect.ready_validation()
    return found


def _tried(trial: Trial, declared: Mapping[str, DeclaredProcessor], facts: ModelFacts) -> TrialResult:
    try:
        declared[trial.name].validate(SamplingParams(extra_args=trial.args or None), facts)
    except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
        expected = isinstance(error, ValueError)
        return TrialResult(printed(error) if expected else described(contained(error)))
    return TrialResult()


def _receive(pipe: IO[bytes], frames: SimpleQueue[bytes]) -> None:
    """Queue the frames, eight bytes of length before their content, and end the process with the one that sends them.

    In a thread, so that its end is noticed while a trial runs that never returns.
    """
    while len(head := pipe.read(8)) == 8:
        frames.put(pipe.read(int.from_bytes(head, "big")))
    os._exit(0)


def _write(pipe: IO[bytes], result: TrialResult) -> None:
    content = msgspec.msgpack.encode(result)
    pipe.write(len(content).to_bytes(8, "big") + content)
    pipe.flush()


if __name__ == "__main__":
    main()
