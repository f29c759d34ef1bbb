"""Calls of CUDA's runtime through Paddle and torch, with stand-ins that behave as it does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from paddle import distributed
from paddle.device.cuda import graphs
from support.gpu_config import gpu_fd_config

from fastdeploy_lp.model_executor.parallel.communicator import RankPlace
from fastdeploy_lp.model_executor.parallel.paddle_communicator import PaddleCommunicator
from fastdeploy_lp.platforms import CpuPlatform, GpuPlatform, current_platform, gpu, selection

STREAM = 0x7F00
SELECTED = "FLAGS_selected_gpus"


class Runtime:
    """The device on which the process computes, the work that it has recorded, and the pools of its graphs."""

    def __init__(self) -> None:
        self.device = 0
        self.recording: int | None = None
        self.recorded: list[str] = []
        self.pools = 0

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def run(self) -> None:
        """One operator: a graph holds it only if it records the operator's device."""
        if self.recording == self.device:
            self.recorded.append(f"operator on {self.device}")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()

    class StandInGraph:
        def __init__(self, place: Any = None, mode: str = "thread_local", pool_id: int | None = None) -> None:
            # As Paddle does.
            self._device = int(os.environ.get(SELECTED, 0)) if place is None else place.device
            self.pool = made.new_pool() if pool_id is None else pool_id

        def capture_begin(self) -> None:
            made.recording = self._device

        def capture_end(self) -> None:
            made.recording = None

        def replay(self) -> StandInGraph:
            return self

    def set_device(name: str) -> None:
        made.device = int(name.partition(":")[2] or 0)

    monkeypatch.setattr(graphs, "CUDAGraph", StandInGraph)
    monkeypatch.setattr(
        paddle.base.core, "CUDAGraph", SimpleNamespace(gen_new_memory_pool_id=made.new_pool), raising=False
    )
    monkeypatch.setattr(paddle, "CUDAPlace", lambda device: SimpleNamespace(device=device))
    monkeypatch.setattr(paddle, "set_device", set_device)
    monkeypatch.setattr(paddle.device, "get_device", lambda: f"gpu:{made.device}")
    monkeypatch.setattr(paddle.device, "synchronize", lambda: None)
    stream = SimpleNamespace(stream_base=SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(paddle.device, "current_stream", lambda: stream)
    monkeypatch.delenv(SELECTED, raising=False)
    return made


@pytest.mark.parametrize("rank", [0, 3])
def test_a_graph_records_the_device_on_which_the_rank_computes(runtime: Runtime, rank: int) -> None:
    """By default Paddle records GPU 0, so that the graph of any other rank would be empty."""
    paddle.set_device(GpuPlatform().device_of_rank(rank))
    GpuPlatform().capture(runtime.run)
    assert runtime.recorded == [f"operator on {rank}"]


def test_all_graphs_share_one_pool_of_memory(runtime: Runtime) -> None:
    platform = GpuPlatform()
    replays: list[Callable[[], Any]] = [platform.capture(runtime.run) for _ in range(9)]
    assert {replay().pool for replay in replays} == {1}
    assert runtime.pools == 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.usefixtures("runtime")
def test_a_rank_joins_its_group_with_its_device(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    joined: list[int] = []

    def init_parallel_env() -> None:
        # As Paddle's own: it refuses NCCL without the variable, and sets the device from it.
        if os.environ["PADDLE_DISTRI_BACKEND"] == "nccl" and SELECTED not in os.environ:
            raise ValueError("paddle.distributed initialize error, environment variable is needed")
        joined.append(int(os.environ[SELECTED]))

    monkeypatch.setattr(distributed, "init_parallel_env", init_parallel_env)
    with _serving_on(GpuPlatform()), _kept_environment():
        PaddleCommunicator(RankPlace(rank, ["127.0.0.1:1", "127.0.0.1:2"], "127.0.0.1:3"))
    assert joined == [rank]


def test_a_rank_on_the_cpu_names_no_device() -> None:
    assert CpuPlatform().communication_environment(1) == {}


@contextmanager
def _serving_on(platform: GpuPlatform) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "find_platform", lambda _: platform)
        current_platform.cache_clear()
        yield
    current_platform.cache_clear()


@contextmanager
def _kept_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# torch


def test_torch_runs_on_the_stream_and_the_device_of_paddle(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[tuple[int, str]] = []

    @contextmanager
    def stream(external: Any) -> Iterator[None]:
        entered.append((external.address, external.device))
        yield
        entered.append((0, ""))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "ExternalStream", lambda address, device: SimpleNamespace(address=address, device=device)
    )
    monkeypatch.setattr(torch.cuda, "stream", stream)
    runtime.device = 2
    with GpuPlatform().torch_stream():
        assert entered == [(STREAM, "cuda:2")]
    assert entered[1:] == [(0, "")]


@pytest.mark.usefixtures("runtime")
def test_a_torch_without_cuda_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA")
    with pytest.raises(RuntimeError, match=r"^torch \S+ has no CUDA; install a build of it for the GPU's driver$"):
        GpuPlatform().torch_device()


# Time


def test_the_devices_time_is_measured_by_events_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reached = [0.0], [0.0]

    class StandInEvent:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock[0]

        def query(self) -> bool:
            return self.at <= reached[0]

        def elapsed_time(self, end: StandInEvent) -> float:
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(paddle.device, "Event", StandInEvent)
    watch = GpuPlatform().watch()
    for seconds in (2.0, 3.0, 4.0):
        watch.start()
        clock[0] += seconds
        watch.stop()
        clock[0] += 10.0
    # The device is between the second and the third pair.
    reached[0] = 20.0
    assert watch.take() == pytest.approx(5.0)
    assert watch.take() == 0.0
    reached[0] = 100.0
    assert watch.take() == pytest.approx(4.0)


# Switches


@pytest.mark.parametrize(
    ("switches", "ahead"), [({}, True), ({"overlap": False}, False), ({"pinned_memory": False}, False)]
)
def test_passes_run_ahead_where_tokens_are_read_through_pinned_memory(switches: dict[str, bool], ahead: bool) -> None:
    platform, config = GpuPlatform(), gpu_fd_config()
    platform.configure(replace(config, device_config=replace(config.device_config, **switches)))
    assert platform.runs_ahead is ahead


def test_a_read_is_queued_in_paddles_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for the driver, which copies at once."""
    copied = []

    class Driver:
        def cuMemcpyDtoHAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:  # noqa: N802
            ctypes.memmove(target.value, source.value, size.value)
            copied.append((size.value, stream.value))
            return 0

    class Event:
        def record(self) -> None: ...

        def synchronize(self) -> None:
            copied.append("waited")

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver())
    monkeypatch.setattr(gpu, "_current_stream", lambda: 77)
    monkeypatch.setattr(gpu._CudaCopies, "allocate", lambda _, size: np.zeros(size, np.uint8))
    monkeypatch.setattr(paddle.device.cuda, "Event", Event)
    tokens = paddle.to_tensor(np.array([[5, 6], [7, 8]]))
    finish = GpuPlatform().read_later(tokens)
    assert copied == [(32, 77)]
    found = finish()
    assert copied[1:] == ["waited"]
    assert (found.dtype, found.tolist()) == (np.int64, [[5, 6], [7, 8]])


def test_without_pinned_memory_a_copy_waits_and_the_ring_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    platform, config, host = GpuPlatform(), gpu_fd_config(), np.array([1, 2, 3])
    monkeypatch.setitem(vars(platform), "_ring", None)
    platform.configure(replace(config, device_config=replace(config.device_config, pinned_memory=False)))
    assert platform.to_device(host).numpy().tolist() == [1, 2, 3]
    assert platform.read_later(paddle.to_tensor(host))().tolist() == [1, 2, 3]
    platform.configure(config)
    with pytest.raises(AttributeError):
        platform.to_device(host)
