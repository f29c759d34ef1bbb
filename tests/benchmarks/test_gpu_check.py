"""The check for owners of a GPU, as far as it can be seen without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_audit
import gpu_chain
import gpu_check
import numpy as np
import pytest
from support.server import REPOSITORY, server_environment
from support.tiny import GOLDEN, write_tiny_checkpoint

from fastdeploy_lp.logits_processor import BUILTIN
from fastdeploy_lp.model_executor.ops import compiled_rows
from fastdeploy_lp.platforms import GpuPlatform, host_memory

PROGRAM = REPOSITORY / "benchmarks" / "gpu_check.py"
CASES = GOLDEN / "tiny-llama" / "reference.json"


def ran(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *options]
    return subprocess.run(command, capture_output=True, text=True, env=server_environment())


def test_a_machine_without_a_gpu_is_told_with_a_status_of_its_own() -> None:
    if GpuPlatform.is_supported():
        pytest.skip("this machine has a GPU that Paddle can use")
    done = ran()
    assert done.returncode == gpu_check.NO_GPU == 77
    assert done.stderr == f"gpu-check: there is no GPU that Paddle can use: {GpuPlatform.what_is_missing()}\n"
    assert done.stdout == ""


@pytest.mark.slow
def test_the_check_itself_runs_on_a_cpu(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path)
    done = ran("--platform", "cpu", "--model", str(model), "--cases", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert parts == [
        f"{part}: as it should be"
        for part in ("golden tokens", "chain and sampler", "waits of a step", "speed of generation")
    ]
    assert "100.0% of the tokens" in done.stdout


@pytest.mark.parametrize(
    ("platform", "answers", "same", "share", "well"),
    [
        ("cpu", [[[1, 2, 3], [1, 2, 3]], [[4], [4]]], 2, "100.0%", True),
        ("cpu", [[[1, 2, 3], [1, 2, 4]], [[4], [4]]], 1, "75.0%", False),
        ("gpu", [[[1, 2, 3], [1, 2, 4]], [[4], [4]]], 1, "75.0%", True),
        ("gpu", [[[1, 9, 3], [1, 2, 3]], [[4], [4]]], 1, "50.0%", False),
        ("cpu", [[[1], [1, 2]]], 0, "50.0%", False),
    ],
)
def test_tokens_count_up_to_the_first_that_differs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    answers: list[list[list[int]]],
    same: int,
    share: str,
    well: bool,
) -> None:
    (tmp_path / platform).mkdir()
    (tmp_path / platform / "golden.json").write_text(json.dumps(answers))
    monkeypatch.setattr(gpu_check.Check, "_run", lambda *_: None)
    finding = gpu_check.Check(platform, "none", CASES, tmp_path).golden()
    assert finding.well is well
    assert finding.lines[0] == f"{same} of {len(answers)} answers are the reference's token by token"
    assert finding.lines[1].startswith(f"{share} of the tokens")
    assert ("NOT AS IT SHOULD BE" in str(finding)) is not well


def test_a_part_that_fails_is_reported_with_what_it_said(tmp_path: Path) -> None:
    finding = gpu_check.Check("cpu", "none", tmp_path / "absent.json", tmp_path).golden()
    assert not finding.well
    assert finding.lines[0] == "ended with status 1"
    assert "absent.json" in finding.lines[-1]


# The chain on the device against the chain in host memory


@pytest.fixture(scope="module")
def in_host_memory() -> dict[str, Any]:
    return gpu_chain.outcome()


def test_builtins_give_the_same_where_logits_are_out_of_the_hosts_reach(
    in_host_memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, by the ways that they take on a device: Paddle's operators and no view of the logits."""
    monkeypatch.setattr(compiled_rows, "compiled_ops", lambda: None)
    monkeypatch.setattr(host_memory, "in_host_memory", lambda _: False)
    assert gpu_check.differences(gpu_chain.outcome(), in_host_memory, gpu_check.CHAIN_TOLERANCE) == []


def test_the_builtins_of_the_check_are_there_and_do_something(in_host_memory: dict[str, Any]) -> None:
    assert {f"{noun}LogitsProcessor" for noun in gpu_chain.BUILTINS} <= set(BUILTIN)
    for noun in gpu_chain.BUILTINS:
        using, other = (
            np.stack([in_host_memory[f"{noun} {request} {step}"] for step in range(gpu_chain.STEPS)])
            for request in ("using", "not-using")
        )
        assert np.isfinite(other).all()
        untouched = gpu_chain.ProcessorHarness(f"{noun}LogitsProcessor")
        rows = [untouched.random_row("using", step) for step in range(gpu_chain.STEPS)]
        assert (using != np.stack(rows)).any(), noun


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ({"a": [1.0, -np.inf]}, {"a": [1.0, -np.inf]}, []),
        ({"a": [1.0]}, {"a": [1.00001]}, []),
        ({"a": [1.0]}, {"a": [1.1]}, ["a: up to 0.1 apart"]),
        ({"a": [1.0, -np.inf]}, {"a": [-np.inf, 1.0]}, ["a: other tokens are ruled out"]),
        ({"a": [1.0]}, {"a": [1.0, 2.0]}, ["a: other tokens are ruled out"]),
        ({"a": [1.0]}, {"b": [1.0]}, ["only one side has a", "only one side has b"]),
    ],
)
def test_what_differs_is_named(mine: dict[str, Any], theirs: dict[str, Any], found: list[str]) -> None:
    arrays = [{name: np.array(values) for name, values in side.items()} for side in (mine, theirs)]
    assert gpu_check.differences(*arrays, tolerance=1e-3) == found


# The trace of CUDA's functions


def event(name: str, begin: float, length: float = 1.0) -> dict[str, Any]:
    return {"name": f"{name}[{length} us]", "ph": "X", "ts": begin, "dur": length}


def test_waits_are_counted_in_their_step() -> None:
    trace = {
        "traceEvents": [
            event("cudaStreamSynchronize", 5),  # before the first step
            event("engine step 1", 200, 50),
            event("engine step 0", 100, 50),
            event("cudaLaunchKernel", 101),
            event("cudaMemcpyAsync", 110),
            event("cudaStreamSynchronize", 120),
            event("cudaStreamSynchronize", 210),
            event("cudaMemcpy", 220),
            event("cudaMemcpy", 230),
            event("cudaDeviceSynchronize", 160),  # between the steps
            {"name": "thread_name", "ph": "M"},
            {},
        ]
    }
    assert gpu_audit.waits_within(trace, gpu_audit.STEP) == [
        {"cudaStreamSynchronize": 1},
        {"cudaStreamSynchronize": 1, "cudaMemcpy": 2},
    ]


@pytest.mark.parametrize(
    ("platform", "of_a_read", "waits", "well"),
    [
        ("gpu", 1, [1, 1], True),
        ("gpu", 2, [2, 2], True),
        ("gpu", 1, [1, 2], False),
        ("gpu", 0, [0, 0], False),
        ("gpu", 1, [], False),
        ("gpu", None, [1, 1], False),
        ("cpu", 0, [0], True),
    ],
)
def test_a_step_waits_as_often_as_one_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    of_a_read: int | None,
    waits: list[int],
    well: bool,
) -> None:
    events = [] if of_a_read is None else [event("one read", -100, 99)]
    events += [event("cudaStreamSynchronize", -90 + 10 * call) for call in range(of_a_read or 0)]
    for index, count in enumerate(waits):
        events.append(event(f"engine step {index}", 100 * index, 99))
        events += [event("cudaStreamSynchronize", 100 * index + 10 * (1 + call)) for call in range(count)]
    (tmp_path / platform).mkdir()
    (tmp_path / platform / "audit_1.paddle_trace.json").write_text(json.dumps({"traceEvents": events}))
    made = gpu_check.Check(platform, "none", CASES, tmp_path)
    monkeypatch.setattr(gpu_check.Check, "_run", lambda *_: None)
    assert made.audit().well is well
