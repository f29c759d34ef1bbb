"""The stand-ins for vLLM's loader and buffers of slot-keyed processors, as vLLM's own tests of them are described."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.request.sampling_params import SamplingParams

MODULE = """
from vllm.v1.sample.logits_processor import LogitsProcessor as V1
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor


class First(LogitsProcessor):
    def __init__(self, vllm_config, req_states):
        self.given = vllm_config, req_states

    @classmethod
    def validate_params(cls, sampling_params):
        if (sampling_params.extra_args or {}).get("target_token") == -1:
            raise ValueError("target_token must not be -1")

    def apply(self, logits, ctx):
        return logits


class Second(First): ...


class Older(V1): ...


def no_class(): ...


class Outer:
    class Nested(First): ...
"""
STATE = SimpleNamespace(
    device="cpu", max_num_reqs=4, vocab_size=128, all_token_ids=1, prompt_len=2, prefill_len=3, total_len=4
)


def entry(found: Any) -> SimpleNamespace:
    def load() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(name="an_entry", value="a:B", load=load)


def installed(*plugins: Any) -> Callable[..., list[Any]]:
    """In place of `entry_points`."""

    def find(*, group: str) -> list[Any]:
        assert group == "vllm.logits_processors"
        return list(plugins)

    return find


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's module, with no entry points installed."""
    (tmp_path / "given.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with vllm_stand_ins():
        import vllm.v1.worker.gpu.sample.logits_processor.loader as loader

        monkeypatch.setattr(loader, "entry_points", installed())
        loader._cached_load_v2_logitsprocs.cache_clear()
        yield loader
        loader._cached_load_v2_logitsprocs.cache_clear()
        sys.modules.pop("given", None)


def given() -> Any:
    import given

    return given


def build(loader: Any, *custom: Any, pooling: bool = False) -> list[Any]:
    built: list[Any] = loader.build_custom_logits_processors("config", STATE, pooling, custom)
    return built


@pytest.mark.parametrize("source", ["class", "name", "entry point"])
def test_a_processor_loads_from_each_source_and_entry_points_come_first(
    loader: Any, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    custom = {"class": given().First, "name": "given:First", "entry point": "given:Second"}[source]
    if source == "entry point":
        monkeypatch.setattr(loader, "entry_points", installed(entry(given().First)))
    built = build(loader, custom)
    expected = [given().First] + ([given().Second] if source == "entry point" else [])
    assert [type(each) for each in built] == expected
    config, state = built[0].given
    assert (config, state.max_num_reqs, state.total_len) == ("config", 4, 4)
    assert isinstance(state, loader.LogitsProcRequestState)
    assert type(build(loader, "given:Outer.Nested")[-1]) is given().Outer.Nested


@pytest.mark.parametrize(
    ("custom", "error", "words"),
    [
        ("given:Older", ValueError, "not a subclass"),
        ("given:no_class", ValueError, "must be a type"),
        ("no.such.module:Nope", RuntimeError, "no.such.module:Nope"),
        ("no_colon_here", ValueError, "Expected format"),
        ("too:many:colons", ValueError, "Expected format"),
    ],
)
def test_what_is_no_slot_keyed_processor_is_refused_when_it_is_loaded(
    loader: Any, custom: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        build(loader, custom)
    with pytest.raises(error, match=words):
        loader.build_custom_logits_processors_params_validator([custom])


@pytest.mark.parametrize(
    ("found", "error", "words"),
    [
        ("Older", ValueError, "V1-interface plugins are not supported"),
        ("no_class", ValueError, "not a subclass"),
        (ImportError("no such thing"), RuntimeError, "an_entry .* no such thing"),
    ],
)
def test_an_entry_point_that_is_none_is_refused(
    loader: Any, monkeypatch: pytest.MonkeyPatch, found: Any, error: type[Exception], words: str
) -> None:
    plugin = entry(getattr(given(), found) if isinstance(found, str) else found)
    monkeypatch.setattr(loader, "entry_points", installed(plugin))
    with pytest.raises(error, match=words):
        build(loader)


def test_a_pooling_model_takes_none_and_needs_none(loader: Any) -> None:
    with pytest.raises(ValueError, match="Pooling models do not support"):
        build(loader, given().First, pooling=True)
    assert build(loader, pooling=True) == []


def test_the_validator_turns_a_refusal_into_vllms_error(loader: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    validate = loader.build_custom_logits_processors_params_validator([given().First])
    validate(SamplingParams(extra_args={"target_token": 1}))
    with pytest.raises(VLLMValidationError, match="target_token"):
        validate(SamplingParams(extra_args={"target_token": -1}))
    loader.build_custom_logits_processors_params_validator(None)(SamplingParams(extra_args={"target_token": -1}))


def test_a_process_that_only_validates_loads_no_tensor_library(tmp_path: Path) -> None:
    """Neither by the stand-ins nor by the dialect: the API process runs both."""
    (tmp_path / "given.py").write_text(MODULE)
    program = (
        "import sys\n"
        "from fastdeploy_lp.logits_processor import load_processors, vllm_compat\n"
        "from fastdeploy_lp.request.sampling_params import SamplingParams\n"
        "vllm_compat.install()\n"
        "import vllm.v1.worker.gpu.sample.logits_processor.loader as loader\n"
        "import given\n"
        "loader.build_custom_logits_processors_params_validator([given.First])(SamplingParams())\n"
        "print(load_processors(['given:First'])[0].dialect.name)\n"
        "print(sorted({'torch', 'paddle'} & set(sys.modules)))\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "FASTDEPLOY_LP_PLUGINS": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["torch", "[]"]


# Buffers


def test_host_writes_reach_the_device_with_the_next_copy() -> None:
    with vllm_stand_ins():
        from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor

        buffer = UvaBackedTensor((4, 2), dtype=torch.float32)
    buffer.np[1] = [2.0, 3.0]
    assert not buffer.gpu.any()
    assert buffer.copy_to_uva().tolist() == buffer.gpu.tolist() == buffer.cpu.tolist()
    buffer.np[3] = 9.0
    assert buffer.gpu[1].tolist() == [2.0, 3.0]
    assert buffer.copy_to_uva(2).shape == (2, 2)


def test_staged_writes_are_made_in_their_order() -> None:
    with vllm_stand_ins():
        from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

        buffer = StagedWriteTensor((3, 5), dtype=torch.int32, device=torch.device("cpu"))
        numbers = StagedWriteTensor(3, torch.float32, "cpu", uva_instead_of_gpu=True)
        with pytest.raises(ValueError, match="dtype: must be one of"):
            StagedWriteTensor(3, torch.float16, "cpu")
    buffer.stage_write(1, 2, [7, 8, 9])
    buffer.stage_write(1, 3, [5])
    buffer.stage_write(2, 0, [])
    buffer.stage_write_elem(0, 4)
    numbers.stage_write_elem(2, 1.5)
    assert not buffer.gpu.any()
    buffer.apply_write()
    numbers.apply_write()
    np.testing.assert_array_equal(buffer.gpu.numpy(), [[4, 0, 0, 0, 0], [0, 0, 7, 5, 9], [0, 0, 0, 0, 0]])
    assert numbers.gpu.tolist() == [0.0, 0.0, 1.5]
    buffer.stage_write(0, 0, [1])
    buffer.clear_staged_writes()
    buffer.apply_write()
    assert buffer.gpu[0].tolist() == [4, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="must not be negative"):
        buffer.stage_write(-1, 0, [1])


def test_copies_to_the_device_take_vllms_arguments_in_both_orders() -> None:
    with vllm_stand_ins():
        from vllm.utils.torch_utils import async_tensor_h2d

    device, numbers = torch.device("cpu"), np.array([1, 2])
    copy = async_tensor_h2d(numbers, device)
    numbers[0] = 9
    assert (copy.tolist(), copy.dtype) == ([1, 2], torch.int64)
    assert async_tensor_h2d([1, 2], device, torch.int32).dtype is torch.int32
    assert async_tensor_h2d([1, 2], torch.float32, "cpu", False).dtype is torch.float32
    target = torch.zeros(2)
    assert async_tensor_h2d([3, 4], out=target) is target
    assert target.tolist() == [3.0, 4.0]
