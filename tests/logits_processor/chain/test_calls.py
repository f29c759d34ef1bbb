"""The record of running processors outlives the process that wrote it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from fastdeploy_lp.logits_processor import load_processors
from fastdeploy_lp.logits_processor.chain.calls import CallKind, Culprit, RunningCalls, recorders

DIES = """
import os, sys
from fastdeploy_lp.logits_processor.chain.calls import CallKind, CallRecorder, RunningCalls
calls = RunningCalls(int(sys.argv[1]))
bystander, culprit = CallRecorder(calls, 0, CallKind.CHAIN), CallRecorder(calls, 1, CallKind[sys.argv[2]])
bystander.begin_step(); bystander.end()
culprit.begin_build() if sys.argv[2] == "BUILD" else culprit.begin_step()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("kind", list(CallKind), ids=lambda kind: kind.name)
def test_the_processor_that_ran_when_its_process_was_killed_is_known(kind: CallKind) -> None:
    calls = RunningCalls.create()
    ended = subprocess.run([sys.executable, "-c", DIES, str(calls.fd), kind.name], pass_fds=(calls.fd,), check=False)
    assert ended.returncode == -9
    for _ in range(2):
        assert calls.culprits(["a", "b"]) == (Culprit("b", kind),)
        calls.close()


def test_each_thread_has_a_place_of_its_own() -> None:
    calls = RunningCalls.create()
    declared = load_processors(["LogitBiasLogitsProcessor", "support.processors:Sets", "support.processors:Doubles"])
    found = recorders(declared, calls, CallKind.CHAIN)
    assert list(found) == ["Sets", "Doubles"], "builtins are part of the engine"
    found["Sets"].begin_step()
    builder = threading.Thread(target=found["Doubles"].begin_build)
    builder.start()
    builder.join()
    names = [processor.name for processor in declared]
    assert set(calls.culprits(names)) == {Culprit("Sets", CallKind.CHAIN), Culprit("Doubles", CallKind.BUILD)}
    found["Sets"].end()
    assert calls.culprits(names) == (Culprit("Doubles", CallKind.BUILD),)
    calls.close()


def test_nothing_is_left_in_the_file_system() -> None:
    before = os.listdir("/dev/shm")
    calls = RunningCalls.create()
    assert os.listdir("/dev/shm") == before
    calls.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(calls.fd)
