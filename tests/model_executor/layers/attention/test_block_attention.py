"""The GPU's attention backend, the operator's emulation in its place, against the backend on plain operators."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import Tensor
from support.block_attention_operator import KernelError, block_multihead_attention
from support.decoders import (
    Piece,
    Seats,
    Setting,
    Shape,
    crowds,
    paddle_decoder,
    rotary,
    run,
    run_alone,
    run_schedule,
    schedules,
    settings_of_a_run,
    shapes,
    thrifty_schedules,
)

from fastdeploy_lp.model_executor.layers.attention import prefix_attention
from fastdeploy_lp.model_executor.layers.attention.block_attention import BlockAttentionBackend
from fastdeploy_lp.model_executor.layers.attention.prefix_attention import PrefixAttention
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder

TOLERANCE = 2e-4
SLOW = {"suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def block_backend(shape: Shape, setting: Setting) -> BlockAttentionBackend:
    return BlockAttentionBackend(
        setting.fd_config(shape), shape.dimensions, rotary(shape, setting), block_multihead_attention
    )


def block_decoder(shape: Shape, setting: Setting, backend: BlockAttentionBackend | None = None) -> PaddleDecoder:
    """The decoder as a GPU runs it; nothing has been written to its cache, so whatever is read of it is NaN."""
    backend = backend or block_backend(shape, setting)
    made = PaddleDecoder(
        setting.fd_config(shape), shape.dimensions, rotary(shape, setting), shape.weights(), attention=backend
    )
    made.initialize_cache(setting.num_blocks)
    for layer in backend._layers:
        assert layer.cache is not None
        for part in layer.cache:
            paddle.assign(paddle.full_like(part, float("nan")), part)
    return made


def float32_runs() -> st.SearchStrategy[Setting]:
    """The backend keeps keys and values in the model's own type; on a GPU activations are never rounded to 8 bits."""
    return settings_of_a_run([None]).map(lambda setting: replace(setting, cache_dtype="float32"))


@settings(max_examples=20, **SLOW)
@given(st.data())
def test_any_schedule_gives_what_plain_attention_gives(data: st.DataObject) -> None:
    """New prompts, prompts that go on behind a cached part, and generation, alone and mixed in one pass."""
    shape, setting = data.draw(shapes()), data.draw(float32_runs())
    seats = data.draw(crowds(shape, setting))
    expected = run_alone(paddle_decoder(shape, setting), seats)
    found = run_schedule(block_decoder(shape, setting), seats, data.draw(schedules(seats)))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("rows", [1, 3, 7, 1000])
def test_scores_of_a_continued_prompt_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """All scores of a long context at once would not fit into a GPU's memory."""
    shape, setting = Shape(layers=1), Setting(block_size=4, max_model_len=37)
    tokens = [np.random.default_rng(1).integers(0, shape.vocab, 30)]
    seats = Seats(tokens, setting.block_size, range(1, setting.num_blocks))
    schedule = [[Piece(0, 0, 9, 9)], [Piece(0, 9, 30, 21)]]
    (expected,) = run_schedule(block_decoder(shape, setting), seats, schedule)
    # Room for this many rows of the second pass, and not quite for another one.
    monkeypatch.setattr(prefix_attention, "SCORE_BYTES", 4 * shape.dimensions.num_heads * 30 * (rows + 1) - 1)
    pieces: list[int] = []
    attended = PrefixAttention._attended

    def watched(self: PrefixAttention, queries: Tensor, *context: Tensor) -> Tensor:
        pieces.append(queries.shape[0])
        return attended(self, queries, *context)

    monkeypatch.setattr(PrefixAttention, "_attended", watched)
    (found,) = run_schedule(block_decoder(shape, setting), seats, schedule)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert max(pieces) == min(rows, 21)
    assert sum(pieces) == 21


@settings(max_examples=15, **SLOW)
@given(st.data())
def test_the_rows_that_are_asked_for_come_in_the_order_of_the_chunks(data: st.DataObject) -> None:
    shape, setting = Shape(layers=1), Setting(block_size=4, max_model_len=37)
    seats = data.draw(crowds(shape, setting))
    plain, block = paddle_decoder(shape, setting), block_decoder(shape, setting)
    for pieces in data.draw(thrifty_schedules(seats)):
        for mine, theirs in zip(run(block, seats, pieces), run(plain, seats, pieces), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)


def one_sequence(length: int, setting: Setting) -> Seats:
    tokens = np.random.default_rng(length).integers(0, 70, length)
    return Seats([tokens], setting.block_size, range(1, setting.num_blocks))


@pytest.mark.parametrize(
    "cuts",
    [[1], [1, 2], [1, 2, 3], [16], [16, 17], [16, 32], [15, 18], [5, 6, 7, 40]],
    ids=lambda cuts: "-".join(map(str, cuts)),
)
def test_a_prompt_may_be_cut_at_any_place(cuts: list[int]) -> None:
    shape, setting = Shape(), Setting(block_size=16, max_model_len=64)
    seats = one_sequence(45, setting)
    bounds = [0, *cuts, 45]
    schedule = [[Piece(0, start, stop, stop - start)] for start, stop in itertools.pairwise(bounds)]
    (found,) = run_schedule(block_decoder(shape, setting), seats, schedule)
    (expected,) = run_alone(paddle_decoder(shape, setting), seats)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_a_full_context_fits() -> None:
    shape, setting = Shape(layers=1), Setting(block_size=16, max_model_len=64)
    seats = one_sequence(64, setting)
    whole: Sequence[Piece] = [Piece(0, 0, 63, 63)]
    (found,) = run_schedule(block_decoder(shape, setting), seats, [whole, [Piece(0, 63, 64, 1)]])
    (expected,) = run_alone(paddle_decoder(shape, setting), seats)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_the_pass_that_measures_memory_leaves_nothing_behind() -> None:
    shape, setting = Shape(layers=1), Setting(block_size=16, max_model_len=64)
    seats = one_sequence(20, setting)
    backend = block_backend(shape, setting)
    decoder = block_decoder(shape, setting, backend)
    run_alone(decoder, seats)
    decoder.initialize_cache(setting.num_blocks)
    for layer in backend._layers:
        assert layer.cache is not None
        assert not any(part.any() for part in layer.cache)
    (found,), (expected,) = run_alone(decoder, seats), run_alone(paddle_decoder(shape, setting), seats)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_attention_before_there_is_a_cache_says_so() -> None:
    shape, setting = Shape(layers=1), Setting()
    made = PaddleDecoder(
        setting.fd_config(shape),
        shape.dimensions,
        rotary(shape, setting),
        shape.weights(),
        attention=block_backend(shape, setting),
    )
    with pytest.raises(RuntimeError, match="initialize_cache"):
        run_alone(made, one_sequence(3, setting))


def test_the_emulation_notices_what_is_laid_out_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass with other offsets than the kernels expect is no accident that goes unseen."""
    shape, setting = Shape(layers=1), Setting(block_size=16, max_model_len=64)
    seats = Seats([np.arange(20), np.arange(9)], 16, range(1, 9))
    pieces = [Piece(0, 0, 20, 20), Piece(1, 0, 9, 9)]
    expected = run_alone(paddle_decoder(shape, setting), seats)
    backend = block_backend(shape, setting)
    decoder = block_decoder(shape, setting, backend)
    monkeypatch.setattr(backend, "_max_model_len", 63)
    prepare = backend.prepare

    def shifted(chunks: object) -> object:
        batch = prepare(chunks)  # type: ignore[arg-type]
        backend._max_model_len = 64
        return batch

    monkeypatch.setattr(backend, "prepare", shifted)
    try:
        found = run(decoder, seats, pieces)
    except (KernelError, IndexError):
        return
    assert not all(np.allclose(mine, theirs, atol=TOLERANCE) for mine, theirs in zip(found, expected, strict=True))
