"""Processors for torch on a device with separate memory: where their tensors are, and in which stream they run.

The device is the CPU under another name, with copies of host arrays in place of views.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.device_like import DeviceLikePlatform, device_like
from support.sequences import request, run_to_end, tiny_engine
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config
from transformers import LogitsProcessor as HuggingFaceBase
from transformers import MinLengthLogitsProcessor

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.dialects import torch_bridge
from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
from fastdeploy_lp.logits_processor.dialects.parameters import request_parameters

DEVICE = "cpu:0"


class Seen:
    """The calls of processors: the method, the device that it knows, and the streams around it."""

    calls: ClassVar[list[tuple[str, str, int]]] = []
    depth: ClassVar[int] = 0

    @classmethod
    def call(cls, method: str, device: Any) -> None:
        cls.calls.append((method, str(device), cls.depth))


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def stream(_: DeviceLikePlatform) -> Iterator[None]:
        Seen.depth += 1
        yield
        Seen.depth -= 1

    monkeypatch.setattr(DeviceLikePlatform, "torch_device", lambda _: DEVICE, raising=False)
    monkeypatch.setattr(DeviceLikePlatform, "torch_stream", stream, raising=False)
    monkeypatch.setattr(Seen, "calls", [])
    with device_like():
        yield
    assert Seen.depth == 0


def require_in_stream(*methods: str) -> None:
    """Every call was made within Paddle's stream, on the logits' device."""
    assert {method for method, _, _ in Seen.calls} == set(methods)
    assert {(device, depth > 0) for _, device, depth in Seen.calls} == {(DEVICE, True)}


@pytest.fixture
def interface() -> Iterator[Any]:
    with vllm_stand_ins():
        yield sys.modules["vllm.v1.sample.logits_processor"]


def test_a_batch_level_processor_runs_in_paddles_stream_on_the_logits_device(interface: Any) -> None:
    class Adds(interface.LogitsProcessor):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self.device = device
            Seen.call("__init__", device)

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            Seen.call("update_state", self.device)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            Seen.call("apply", self.device)
            logits[:, 7] += 100.0
            return logits

    ran = run_to_end(tiny_engine([Adds]), [request("r", [3, 4], max_tokens=3)])
    assert ran["r"].token_ids == [7, 7, 7]
    require_in_stream("__init__", "update_state", "apply")


def test_a_row_level_processor_runs_in_paddles_stream_on_the_logits_device() -> None:
    """Also one whose `device` has a default."""
    ran = run_to_end(
        tiny_engine([ForcesOnDevice]),
        [request("r", [3, 4], max_tokens=3, selection=Selection(named={"ForcesOnDevice": {"token": 9}}))],
    )
    assert ran["r"].token_ids == [9, 9, 9]
    require_in_stream("__init__", "__call__")


class ForcesOnDevice(HuggingFaceBase):
    def __init__(self, token: int, device: str = "cuda") -> None:
        self.token, self.device = torch.tensor([token], device=device), device
        Seen.call("__init__", device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        Seen.call("__call__", self.device)
        return torch.full_like(scores, -torch.inf).index_fill(1, self.token, 0.0)


def test_a_request_is_checked_on_the_cpu_and_may_repeat_its_name() -> None:
    """The API process has no device."""
    checked, served = ModelFacts(512), ModelFacts.of(tiny_fd_config())
    parameters = request_parameters(MinLengthLogitsProcessor)
    given = {"min_length": 3, "eos_token_id": 2}
    for each in (given, given | {"device": "cpu"}):
        assert str(parameters.arguments(each, checked)["device"]) == "cpu"
        assert str(parameters.arguments(each, served)["device"]) == DEVICE
    with pytest.raises(ValueError, match="device: the server supplies cpu; leave it out"):
        parameters.arguments(given | {"device": "cuda:1"}, checked)


def test_a_slot_keyed_processor_runs_in_paddles_stream_and_its_arrays_follow(interface: Any) -> None:
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    class Follows(LogitsProcessor):  # type: ignore[misc]
        """Forces each request's number of tokens so far, and records the last token that it sees on the device."""

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            self.states = req_states
            self.asked = UvaBackedTensor(req_states.max_num_reqs, torch.int32)
            self.staged = StagedWriteTensor((req_states.max_num_reqs, 2), torch.int32, req_states.device)
            Seen.call("__init__", req_states.device)

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            Seen.call("add_request", self.states.device)
            self.asked.np[req_idx] = 1
            self.staged.stage_write_elem(req_idx, 5)
            return True

        def apply_staged_writes(self) -> None:
            Seen.call("apply_staged_writes", self.states.device)
            self.asked.copy_to_uva()
            self.staged.apply_write()

        def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
            Seen.call("apply", self.states.device)
            slots = ctx.idx_mapping.long()
            assert self.asked.gpu[slots].tolist() == [1] * len(slots)
            assert self.staged.gpu[slots, 0].tolist() == [5] * len(slots)
            lengths = self.states.total_len.gpu[slots].long()
            last = self.states.all_token_ids.gpu[slots, lengths - 1]
            assert last.tolist() == ctx.input_ids.tolist()
            logits.fill_(-torch.inf)
            logits[torch.arange(len(slots)), lengths] = 0.0
            return logits

    ran = run_to_end(
        tiny_engine([Follows], max_num_seqs=2),
        [request(name, prompt, max_tokens=3) for name, prompt in {"a": [9, 9], "b": [8] * 5, "c": [7]}.items()],
    )
    assert {name: each.token_ids for name, each in ran.items()} == {"a": [2, 3, 4], "b": [5, 6, 7], "c": [1, 2, 3]}
    require_in_stream("__init__", "add_request", "apply_staged_writes", "apply")


class OnDevice:
    """Like a torch tensor on a device."""

    is_cpu = False


@pytest.mark.parametrize(
    "make",
    [
        lambda host: torch_bridge.token_row(host.tolist(), OnDevice())[0],
        torch_bridge.on_device,
    ],
)
def test_host_numbers_reach_the_device_without_a_wait(
    make: Callable[[Any], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.tensor(…, device=…)` would copy from memory that is not pinned."""
    sent: list[int] = []
    to_device = DeviceLikePlatform.to_device

    def watched(self: DeviceLikePlatform, host: Any) -> Any:
        sent.append(host.size)
        return to_device(self, host)

    monkeypatch.setattr(DeviceLikePlatform, "to_device", watched)
    assert make(np.array([3, 1, 4])).tolist() == [3, 1, 4]
    assert sent == [3]
