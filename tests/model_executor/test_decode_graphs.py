"""Recorded decode passes, with the recorded work called directly in the place of a CUDA graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import Tensor
from support.block_attention_operator import block_multihead_attention
from support.decoders import Piece, Seats, Setting, Shape, rotary, run, run_schedule

from fastdeploy_lp.logits_processor.testing.tensors import READS
from fastdeploy_lp.model_executor.decode_graphs import Run, bucket_sizes
from fastdeploy_lp.model_executor.layers.attention.block_attention import BlockAttentionBackend, StaticDecodeBatch
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder

SHAPE = Shape(layers=1, biased=frozenset(("q_proj", "v_proj")), qk_norm=True)
SETTING = Setting(block_size=16, max_model_len=64, num_blocks=64)
PROMPTS, LENGTH = 9, 40


class Emulated(BlockAttentionBackend):
    """With the operator's emulation; knows what it has given out."""

    def __init__(self) -> None:
        super().__init__(SETTING.fd_config(SHAPE), SHAPE.dimensions, rotary(SHAPE, SETTING), block_multihead_attention)
        self.batches: list[StaticDecodeBatch] = []

    def decode_batch(self, size: int) -> StaticDecodeBatch:
        self.batches.append(super().decode_batch(size))
        return self.batches[-1]

    def contents(self) -> list[np.ndarray]:
        return [part.numpy() for layer in self._layers for part in layer.cache or ()]


class Recorder:
    """Records nothing and calls directly; counts what is called, by the place in which it was recorded."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self._recorded = 0

    def __call__(self, run: Run) -> Run:
        place, self._recorded = self._recorded, self._recorded + 1
        run()

        def repeat() -> None:
            self.calls.append(place)
            run()

        return repeat


def decoder(max_num_seqs: int | None = None, capture: Callable[[Run], Run] | None = None) -> PaddleDecoder:
    """With recorded passes of up to `max_num_seqs` sequences, or without any."""
    made = PaddleDecoder(
        SETTING.fd_config(SHAPE), SHAPE.dimensions, rotary(SHAPE, SETTING), SHAPE.weights(), attention=Emulated()
    )
    made.initialize_cache(SETTING.num_blocks)
    if max_num_seqs is not None:
        with paddle.no_grad():
            made.record_decode(max_num_seqs, capture or Recorder())
    return made


def emulated(made: PaddleDecoder) -> Emulated:
    assert isinstance(made._attention, Emulated)
    return made._attention


def seats() -> Seats:
    random = np.random.default_rng(7)
    blocks = 1 + random.permutation(SETTING.num_blocks - 1)
    return Seats([random.integers(0, SHAPE.vocab, LENGTH) for _ in range(PROMPTS)], 16, blocks.tolist())


def prompts(lengths: Sequence[int]) -> list[Piece]:
    return [Piece(index, 0, length, 1) for index, length in enumerate(lengths)]


def next_tokens(lengths: Sequence[int], which: Sequence[int]) -> list[Piece]:
    return [Piece(index, lengths[index], lengths[index] + 1, 1) for index in which]


# Buckets


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9]), (32, [1, 2, 4, 8, 16, 32])],
)
def test_the_sizes_are_powers_of_two_and_the_number_of_slots(max_num_seqs: int, sizes: list[int]) -> None:
    assert bucket_sizes(max_num_seqs) == sizes


@given(st.integers(1, 5000))
def test_no_pass_is_filled_up_to_more_than_twice_its_size(max_num_seqs: int) -> None:
    sizes = bucket_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs
    for smaller, larger in itertools.pairwise(sizes):
        assert larger < 2 * (smaller + 1)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)])
def test_a_pass_runs_in_the_smallest_bucket_that_holds_it(count: int, size: int) -> None:
    recorder = Recorder()
    made, where = decoder(6, recorder), seats()
    lengths = [3] * count
    run(made, where, prompts(lengths))
    recorder.calls.clear()
    run(made, where, next_tokens(lengths, range(count)))
    (place,) = recorder.calls
    assert emulated(made).batches[place].layout.tokens == size


def test_without_cuda_graphs_nothing_is_recorded() -> None:
    config = SETTING.fd_config(SHAPE)
    config = replace(config, device_config=replace(config.device_config, cuda_graphs=False))
    made = PaddleDecoder(config, SHAPE.dimensions, rotary(SHAPE, SETTING), SHAPE.weights(), attention=Emulated())
    made.initialize_cache(SETTING.num_blocks)
    recorder = Recorder()
    made.record_decode(4, recorder)
    where = seats()
    for pieces in (prompts([3]), next_tokens([3], [0])):
        run(made, where, pieces)
    assert recorder.calls == []
    assert emulated(made).batches == []


def test_other_passes_are_not_repeated() -> None:
    recorder = Recorder()
    made, where = decoder(2, recorder), seats()
    lengths = [3, 5, 1]
    schedule = [
        prompts(lengths),
        next_tokens(lengths, [0, 1, 2]),  # more than the largest bucket
        [Piece(0, 4, 6, 1), Piece(1, 6, 7, 1)],  # two tokens
        [Piece(0, 6, 7, 0), Piece(1, 7, 8, 1)],  # one token of the middle of a prompt
        [Piece(3, 0, 1, 1)],  # a prompt of one token
    ]
    recorder.calls.clear()
    for pieces in schedule:
        run(made, where, pieces)
    assert recorder.calls == []


def test_without_a_device_that_repeats_work_every_pass_is_laid_out_anew() -> None:
    made = decoder()
    made.record_decode(4)
    assert made._decode_graphs is None
    assert len(emulated(made).batches) == 1


# What the passes compute


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, LENGTH - 4), min_size=1, max_size=6), st.data())
def test_repeated_passes_give_what_others_give(lengths: list[int], data: st.DataObject) -> None:
    """Sequences leave and come back between passes, so that buckets change and rows hold what others left there."""
    schedule, done = [prompts(lengths)], list(lengths)
    for _ in range(3):
        which = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True))
        schedule.append(next_tokens(done, which))
        for index in which:
            done[index] += 1
    where = Seats(seats().tokens[: len(lengths)], 16, range(1, SETTING.num_blocks))
    plain, repeated = decoder(), decoder(6)
    expected, found = run_schedule(plain, where, schedule), run_schedule(repeated, where, schedule)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    for mine, theirs in zip(emulated(repeated).contents(), emulated(plain).contents(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_recording_and_rows_without_a_sequence_write_nothing_to_the_cache() -> None:
    made, where = decoder(8), seats()
    assert not any(part.any() for part in emulated(made).contents())
    lengths = [20] * 8
    run(made, where, prompts(lengths))
    run(made, where, next_tokens(lengths, range(8)))
    before = emulated(made).contents()
    run(made, where, [Piece(index, 21, 22, 1) for index in range(5)])
    held = {int(where.tables[index][1]) for index in range(5)}
    for old, new in zip(before, emulated(made).contents(), strict=True):
        changed = np.flatnonzero((old != new).any(axis=(1, 2, 3)))
        assert set(changed.tolist()) == held


def test_hidden_states_outlive_the_next_pass() -> None:
    """Prompt logprobs and a repeated step of the chain look at them later."""
    made, where = decoder(2), seats()
    lengths = [5, 9]
    run(made, where, prompts(lengths))
    with paddle.no_grad():
        first = made.forward([where.chunk(piece) for piece in next_tokens(lengths, [0, 1])])
        kept = first.numpy()
        made.forward([where.chunk(Piece(index, length + 1, length + 2, 1)) for index, length in enumerate(lengths)])
    np.testing.assert_array_equal(first.numpy(), kept)


# What may be recorded


@contextmanager
def neither_read_nor_copied() -> Iterator[None]:
    """No tensor is read, and none is made from the host's numbers."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the host and the device exchange data")

    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            if hasattr(Tensor, name):
                patch.setattr(Tensor, name, refuse)
        patch.setattr(paddle, "to_tensor", refuse)
        yield


def test_what_is_recorded_neither_reads_from_the_device_nor_copies_to_it() -> None:
    made = decoder(4)
    attention, layers = emulated(made), emulated(made)._layers

    def operate(qkv: Tensor, *_: object, **__: object) -> tuple[Tensor]:
        return (qkv[:, : SHAPE.dimensions.num_heads * SHAPE.head_dim],)

    attention._operator = operate
    assert layers
    with paddle.no_grad(), neither_read_nor_copied():
        hidden = made._compute(attention.batches[0])
    assert hidden.shape == [4, SHAPE.hidden]


def test_the_audit_sees_a_read_and_a_copy() -> None:
    with neither_read_nor_copied():
        with pytest.raises(AssertionError, match="exchange"):
            float(paddle.ones([]))
        with pytest.raises(AssertionError, match="exchange"):
            paddle.to_tensor([1])


def test_inputs_and_outputs_stay_where_they_are() -> None:
    made, where = decoder(4), seats()
    lengths = [3, 17, 30, 8]
    graphs = made._decode_graphs
    assert graphs is not None

    def places() -> list[int]:
        found = []
        for bucket in graphs._buckets:
            assert isinstance(bucket.batch, StaticDecodeBatch)
            arguments = bucket.batch.arguments.values()
            found += [bucket.output.data_ptr(), bucket.batch.device.data_ptr(), *(x.data_ptr() for x in arguments)]
        return found

    before = places()
    run(made, where, prompts(lengths))
    for count in (4, 3, 2, 1):
        run(made, where, next_tokens([length + 4 - count for length in lengths], range(count)))
    assert places() == before
    batch = emulated(made).batches[0]
    begin = batch.device.data_ptr()
    for argument in batch.arguments.values():
        assert begin <= argument.data_ptr() < begin + 4 * batch.layout.size
