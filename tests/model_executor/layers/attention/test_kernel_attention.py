"""The backend on our kernels, on the CPU, beside the emulation of Paddle's operator: against plain attention."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from support.block_attention_operator import block_multihead_attention
from support.cuda_shim import ShimDevice
from support.decoders import Piece, Seats, Setting, Shape, paddle_decoder, rotary, run, run_alone, run_schedule
from support.paged_attention import VARIANTS

from fastdeploy_lp.model_executor.decode_graphs import Run
from fastdeploy_lp.model_executor.layers.attention import attention_backend
from fastdeploy_lp.model_executor.layers.attention import kernel_attention as module
from fastdeploy_lp.model_executor.layers.attention.kernel_attention import KernelAttention, KernelAttentionBackend
from fastdeploy_lp.model_executor.layers.attention.prefix_attention import PrefixAttention
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape
from fastdeploy_lp.model_executor.ops.cuda.device import Device
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.library import SWITCH
from fastdeploy_lp.platforms import CpuPlatform

TOLERANCE = 2e-4
SHAPE, SETTING = (
    Shape(head_dim=32, layers=1, group=7, kv_heads=1),
    Setting(block_size=16, max_model_len=64, num_blocks=32),
)


class Shimmed(KernelAttentionBackend):
    """With the kernels on the CPU and the operator's emulation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, block_multihead_attention)

    def _open_device(self, heads: HeadShape) -> Device:
        assert ("float32", heads.head_dim) in VARIANTS
        return ShimDevice(sources=KernelSources.attention(*VARIANTS))


def decoder(backend: type[KernelAttentionBackend] = Shimmed) -> PaddleDecoder:
    """Whatever is read of its cache before it is written is NaN."""
    config = SETTING.fd_config(SHAPE)
    attention = backend(config, SHAPE.dimensions, rotary(SHAPE, SETTING))
    made = PaddleDecoder(config, SHAPE.dimensions, rotary(SHAPE, SETTING), SHAPE.weights(), attention=attention)
    made.initialize_cache(SETTING.num_blocks)
    for layer in attention._layers:
        assert layer.cache is not None
        for part in layer.cache:
            paddle.assign(paddle.full_like(part, float("nan")), part)
    return made


def seats(*lengths: int) -> Seats:
    random = np.random.default_rng(3)
    blocks = 1 + random.permutation(SETTING.num_blocks - 1)
    return Seats([random.integers(0, SHAPE.vocab, n) for n in lengths], SETTING.block_size, blocks.tolist())


# New prompts, prompts that continue after a cached part, short and long, and generation, together in a pass.
SCHEDULE = [
    [Piece(0, 0, 9, 9), Piece(1, 0, 20, 20)],
    [Piece(1, 20, 41, 21), Piece(0, 9, 10, 1), Piece(2, 0, 4, 4)],
    [Piece(2, 4, 17, 13), Piece(0, 10, 11, 1), Piece(1, 41, 42, 1)],
]


def test_a_schedule_gives_what_plain_attention_gives() -> None:
    where = seats(11, 42, 17)
    expected = run_alone(paddle_decoder(SHAPE, SETTING), where)
    for mine, theirs in zip(run_schedule(decoder(), where, SCHEDULE), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)


def test_recorded_passes_give_what_others_give() -> None:
    """Rows without a sequence hold what another pass left there, and write nothing."""
    made, plain, where = decoder(), decoder(), seats(11, 42, 17)
    calls: list[int] = []

    def capture(record: Run) -> Run:
        record()
        return lambda: (calls.append(1), record())[1]

    with paddle.no_grad():
        made.record_decode(3, capture)
    lengths = (10, 41, 16)
    prompts = [Piece(index, 0, length, 1) for index, length in enumerate(lengths)]
    for each in (made, plain):
        run(each, where, prompts)
    attention = made._attention
    assert isinstance(attention, Shimmed)
    before = [part.numpy() for layer in attention._layers for part in layer.cache or ()]
    # In the second one, two rows are those of sequences that take no part.
    for which in ((0, 1, 2), (1,)):
        pieces = [Piece(index, lengths[index], lengths[index] + 1, 1) for index in which]
        for mine, theirs in zip(run(made, where, pieces), run(plain, where, pieces), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert len(calls) == 2
    held = {int(where.tables[index][length // 16]) for index, length in enumerate(lengths)}
    for old, layer_part in zip(before, [p for layer in attention._layers for p in layer.cache or ()], strict=True):
        changed = ~((old == layer_part.numpy()) | (np.isnan(old) & np.isnan(layer_part.numpy())))
        assert set(np.flatnonzero(changed.any(axis=(1, 2, 3))).tolist()) == held


def test_only_new_prompts_are_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    made, where = decoder(), seats(11, 42, 17)
    tokens: list[int] = []
    operate: Callable[..., Any] = KernelAttentionBackend._operate

    def watched(self: Any, qkv: Any, *others: Any) -> Any:
        tokens.append(qkv.shape[0])
        return operate(self, qkv, *others)

    monkeypatch.setattr(KernelAttentionBackend, "_operate", watched)
    run_schedule(made, where, SCHEDULE)
    assert tokens == [9 + 20, 4]


class RefusingPlatform(CpuPlatform):
    """A platform whose operator has a longest context."""

    def require_operator_context(self, fd_config: object) -> None:
        raise ValueError("max_model_len: 64 is not allowed")


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")


def test_without_kernels_it_is_the_backend_on_paddles_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)

    class Emulated(KernelAttentionBackend):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, block_multihead_attention)

    made, where = decoder(Emulated), seats(11, 42, 17)
    assert isinstance(made._attention, Emulated)
    assert isinstance(made._attention._rest, PrefixAttention)
    expected = run_alone(paddle_decoder(SHAPE, SETTING), where)
    for mine, theirs in zip(run_schedule(made, where, SCHEDULE), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)


def test_without_kernels_a_context_beyond_the_operators_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    monkeypatch.setattr(module, "current_platform", RefusingPlatform)
    with pytest.raises(ValueError, match="max_model_len: 64 is not allowed"):
        KernelAttentionBackend(SETTING.fd_config(SHAPE), SHAPE.dimensions, rotary(SHAPE, SETTING))


def test_a_model_that_the_kernels_do_not_have_is_computed_without_them(caplog: pytest.LogCaptureFixture) -> None:
    shape = Shape(head_dim=32, kv_heads=1, group=17)
    made = KernelAttentionBackend(SETTING.fd_config(shape), shape.dimensions, rotary(shape, SETTING))
    assert isinstance(made._rest, PrefixAttention)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == (
        "no attention kernels, Paddle's operator generates and plain products continue prompts: the model has 17 query "
        "heads and 1 KV heads; the kernels share one among 1 to 16"
    )


@pytest.mark.parametrize("name", ["kernels", "block"])
def test_the_configuration_selects(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(KernelAttentionBackend, "_open_device", Shimmed._open_device)
    config = SETTING.fd_config(SHAPE)
    object.__setattr__(config.device_config, "attention_backend", name)
    made: Any = attention_backend(config, SHAPE.dimensions, rotary(SHAPE, SETTING))
    assert isinstance(made._rest, KernelAttention if name == "kernels" else PrefixAttention)
