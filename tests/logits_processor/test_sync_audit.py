"""The chain and the builtins never read a tensor back to the host while a step runs; a step reads one, at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from paddle import Tensor
from support.phrases_in_use import PHRASES_IN_USE
from support.sequences import pooling, request, run_to_end, tiny_engine

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.model_config import LOGPROBS_MODES
from fastdeploy_lp.logits_processor import BUILTIN, LogitsProcessor, Selection
from fastdeploy_lp.logits_processor.testing.tensors import READS
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.platforms import CpuPlatform
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.sampler import sampler


@pytest.fixture(autouse=True)
def a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that have to wait for a device: where the host computes, tensors are read one by one."""
    monkeypatch.setattr(CpuPlatform, "computes_on_host", False)


class DeviceReadError(AssertionError):
    """A tensor was read where it must not be."""


@contextmanager
def reads_go_to(on_read: Callable[[str], None]) -> Iterator[None]:
    """`on_read` hears of every read of a tensor's contents."""
    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            if hasattr(Tensor, name):
                patch.setattr(Tensor, name, watched_read(name, on_read))
        yield


def watched_read(name: str, on_read: Callable[[str], None]) -> Callable[..., Any]:
    read = getattr(Tensor, name)

    def watched(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        on_read(name)
        return read(self, *args, **kwargs)

    return watched


def refuse(name: str) -> None:
    raise DeviceReadError(f"Tensor.{name} waits for the device")


def audit(engine: EngineCore) -> None:
    """From now on the chain must not read tensors."""
    chain = engine.runner.chain
    for name in ("update_state", "apply", "needs_guard"):
        setattr(chain, name, audited(getattr(chain, name)))


def audited(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with reads_go_to(refuse):
            return method(*args, **kwargs)

    return run


def crowd(**selections: Selection) -> list[AddRequest]:
    """Greedy and random requests that come and go, some with a bias."""
    made = []
    for index in range(14):
        flat = {"logit_bias": {index: 2.0, 7: -np.inf}} if index % 3 == 0 else {}
        sampling: dict[str, Any] = {"temperature": 0.8, "seed": index, "top_k": 5} if index % 2 else {}
        selection = selections.get(f"r{index}", Selection(flat=flat))
        made.append(request(f"r{index}", [index + 1, 2], max_tokens=1 + index % 5, selection=selection, **sampling))
    return made


@pytest.mark.parametrize(
    "processors", [[], *([name] for name in BUILTIN), [*BUILTIN, "second=LogitBiasLogitsProcessor"]]
)
def test_the_chain_and_the_builtins_do_not_wait_for_the_device(processors: list[str]) -> None:
    engine = tiny_engine(processors, max_num_seqs=5)
    audit(engine)
    ran = run_to_end(engine, crowd())
    assert all(each.finish_reason == "length" for each in ran.values())


@pytest.mark.parametrize("noun", PHRASES_IN_USE)
def test_builtins_in_use_do_not_wait_for_the_device(noun: str) -> None:
    name = f"{noun}LogitsProcessor"
    engine = tiny_engine([name], max_num_seqs=5, eos_token_ids=(0,))
    audit(engine)
    using = {f"r{index}": Selection(flat=PHRASES_IN_USE[noun]) for index in range(0, 14, 2)}
    ran = run_to_end(engine, crowd(**using))
    assert all(each.finish_reason in ("length", "stop") for each in ran.values())
    assert engine.runner.chain.stats[name].rows > 0


def test_several_orders_in_one_batch_do_not_wait_either() -> None:
    engine = tiny_engine(["LogitBiasLogitsProcessor", "second=LogitBiasLogitsProcessor"], max_num_seqs=5)
    audit(engine)
    names = ("second", "LogitBiasLogitsProcessor")
    selection = Selection(named={name: {"logit_bias": {5: 1.0}} for name in names}, order=names)
    ran = run_to_end(engine, crowd(r1=selection, r4=selection, r8=selection))
    assert all(each.finish_reason == "length" for each in ran.values())


class Quiet(LogitsProcessor):
    """Works on the device."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits.scale_(0.5)


class Reads(Quiet):
    """Waits in the way that `how` says."""

    how: Callable[[Tensor], object] = staticmethod(id)

    def apply(self, logits: Tensor) -> Tensor:
        type(self).how(logits)
        return logits


WAYS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda logits: logits.numpy(),
    "item": lambda logits: logits[0, 0].item(),
    "tolist": lambda logits: logits[0].tolist(),
    "bool": lambda logits: bool((logits > 0).any()),
    "if": lambda logits: 1 if logits.max() > 0 else 0,
    "float": lambda logits: float(logits[0, 0]),
    "int": lambda logits: int(logits.argmax()),
    "index": lambda logits: range(logits.shape[1])[logits[0].argmax()],
    "array": lambda logits: np.asarray(logits),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_audit_catches_a_processor_that_waits(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(Reads, "how", staticmethod(WAYS[way]))
    engine = tiny_engine([Reads])
    audit(engine)
    engine.add(request("r", [1], max_tokens=1))
    (step,) = engine.step().steps
    assert "DeviceReadError" in (step.error or "")


def test_the_audit_lets_a_processor_pass_that_does_not_wait() -> None:
    engine = tiny_engine([Quiet])
    audit(engine)
    assert len(run_to_end(engine, [request("r", [1], max_tokens=2)])["r"].token_ids) == 2


@pytest.mark.parametrize(
    "processors", [[], ["LogitBiasLogitsProcessor"], [Quiet]], ids=["no processor", "a builtin", "one that is guarded"]
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", LOGPROBS_MODES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_reads_from_the_device_once(
    monkeypatch: pytest.MonkeyPatch, processors: list[Any], masked: bool, mode: str, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(sampler, "row_ops", PaddleRowOps)
    engine = tiny_engine(processors, max_num_seqs=5, logprobs_mode=mode)
    assert (type(engine.runner._sampler.ops) is PaddleRowOps) is not compiled
    if masked:
        engine.runner.mask = Everything()
    for made in [*crowd(), *demanding()]:
        engine.add(made)
    while engine.has_work:
        reads: list[str] = []
        with reads_go_to(reads.append):
            engine.step()
        assert reads == ["numpy"]


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_pooled_prompts_travel_in_the_same_read(mode: str) -> None:
    """Also where nothing is sampled; a step that only computes a part of prompts reads nothing."""
    engine = tiny_engine([Quiet], max_num_seqs=6, max_num_batched_tokens=16, logprobs_mode=mode)
    pooled = [pooling(f"p{i}", [i + 1] * (1 + 9 * i), kind) for i, kind in enumerate(("mean", "last", "mean", "last"))]
    later = [pooling(f"q{i}", [40 + i] * 37, kind) for i, kind in enumerate(("mean", "last"))]
    for made in [*pooled[:2], *crowd()[:5], *demanding(), *pooled[2:]]:
        engine.add(made)
    counts = set()
    while engine.has_work:
        reads: list[str] = []
        with reads_go_to(reads.append):
            steps = engine.step().steps
        assert reads == (["numpy"] if steps else [])
        counts.add((any(step.pooled is None for step in steps), any(step.pooled for step in steps)))
        if not engine.has_work and later:
            engine.add(later.pop())
    assert counts == {(False, False), (True, False), (False, True), (True, True)}


def demanding() -> list[AddRequest]:
    """Requests that use all that the sampler has."""
    edits: dict[str, Any] = {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "bad_words_token_ids": [[3], [4, 5]],
        "allowed_token_ids": list(range(2, 60)),
        "min_tokens": 2,
        "stop_token_ids": [9],
    }
    filters = [{"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.8}]
    asked = [{"logprobs": 3}, {"logprobs": 0, "prompt_logprobs": 2}, {"prompt_logprobs": 20}, {}]
    return [
        request(f"d{index}", [index + 1, 2, 6], max_tokens=3, temperature=0.9, **filters[index % 3], **more, **edits)
        for index, more in enumerate(asked)
    ]


class Everything(LogitsMask):
    """A mask that rules nothing out."""

    def apply(self, logits: Tensor, slots: Any) -> Tensor:
        return logits
