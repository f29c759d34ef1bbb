from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.decoders import (
    BLOCK_SIZES,
    CACHE_DTYPES,
    LINEARS,
    PRECISIONS,
    Piece,
    Seats,
    Setting,
    Shape,
    compiled_decoder,
    crowds,
    paddle_decoder,
    run,
    run_alone,
    run_schedule,
    schedules,
    settings_of_a_run,
    shapes,
    thrifty_schedules,
)
from support.reference_decoder import LEVELS, quantized_weight, reference_hidden, reference_logits
from support.server import server_environment
from support.stored_weights import STORED

from fastdeploy_lp.model_executor.decoder_weights import FloatArray, LinearWeights
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.decoder import Executor
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat

pytestmark = pytest.mark.usefixtures("ops")

# Of the root mean square of the logits. One level of an 8-bit activation is 1/127, a bfloat16 has 8 significant bits,
# and rounding differences of float32 move a few of them by one; a cache in half floats moves keys and values by 1/2048.
TOLERANCES = {
    (None, "float32"): 1e-5,
    (None, "float16"): 2e-4,
    ("bfloat16", "float32"): 5e-3,
    ("bfloat16", "float16"): 5e-3,
    ("w8a16", "float32"): 2e-4,
    ("w8a16", "float16"): 4e-4,
    ("w8a8", "float32"): 3e-2,
    ("w8a8", "float16"): 3e-2,
}
EXAMPLES = settings(max_examples=12)
SHORT_LEVELS = (WeightFormat.LEVELS5, WeightFormat.LEVELS4)


def assert_near(actual: FloatArray, expected: np.ndarray, setting: Setting) -> None:
    """Root mean square of the difference, so that one activation rounded to the other side does not decide."""
    error = np.sqrt(((actual - expected) ** 2).mean() / (expected**2).mean())
    assert error <= TOLERANCES[setting.quantization, setting.cache_dtype], error


def assert_same_bits(actual: list[FloatArray], expected: list[FloatArray]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def tokens_of(*lengths: int, shape: Shape) -> list[np.ndarray]:
    random = np.random.default_rng(len(lengths))
    return [random.integers(0, shape.vocab, length) for length in lengths]


# Right answers


@EXAMPLES
@given(shapes(), settings_of_a_run(), st.data())
def test_logits_are_those_of_plain_numpy_and_of_paddle(shape: Shape, setting: Setting, data: st.DataObject) -> None:
    seats = data.draw(crowds(shape, setting))
    compiled = run_alone(compiled_decoder(shape, setting), seats)
    paddles = run_alone(paddle_decoder(shape, setting), seats)
    for tokens, ours, theirs in zip(seats.tokens, compiled, paddles, strict=True):
        expected = reference_logits(
            shape.weights(),
            shape.dimensions,
            tokens,
            quantization=setting.quantization,
            half_cache=setting.cache_dtype == "float16",
        )
        assert_near(ours, expected, setting)
        assert_near(theirs, expected, setting)
        assert_near(ours, theirs, setting)


@EXAMPLES
@given(shapes(), settings_of_a_run(), st.data())
def test_hidden_states_are_those_of_plain_numpy(shape: Shape, setting: Setting, data: st.DataObject) -> None:
    """What embeddings are made of: every family is one of these shapes, with or without biases and norms of heads."""
    seats = data.draw(crowds(shape, setting))
    chunks = [seats.chunk(Piece(index, 0, len(each), len(each))) for index, each in enumerate(seats.tokens)]
    expected = [
        reference_hidden(
            shape.weights(),
            shape.dimensions,
            tokens,
            quantization=setting.quantization,
            half_cache=setting.cache_dtype == "float16",
        )
        for tokens in seats.tokens
    ]
    for decoder in (compiled_decoder(shape, setting), paddle_decoder(shape, setting)):
        with paddle.no_grad():
            assert_near(decoder.forward(chunks).numpy(), np.concatenate(expected), setting)


@pytest.mark.parametrize(
    ("name", "quantization"),
    [(name, PRECISIONS[(number + half) % 4]) for number, name in enumerate(LINEARS) for half in (0, 2)],
)
def test_a_bias_on_one_projection_alone_is_added_to_it(name: str, quantization: str | None) -> None:
    shape, setting = Shape(biased=frozenset({name})), Setting(quantization)
    seats = Seats(tokens_of(9, shape=shape), setting.block_size, [1])
    (ours,) = run_alone(compiled_decoder(shape, setting), seats)
    expected = reference_logits(shape.weights(), shape.dimensions, seats.tokens[0], quantization=quantization)
    assert_near(ours, expected, setting)


@pytest.mark.parametrize("stored", sorted(STORED))
def test_weights_lie_in_the_shortest_format_that_holds_them(stored: str) -> None:
    assert set(compiled_decoder(Shape(stored=stored), Setting()).weight_formats) == {STORED[stored]}
    assert set(compiled_decoder(Shape(stored=stored), Setting("bfloat16")).weight_formats) == {WeightFormat.BFLOAT16}
    levels = STORED[stored] if STORED[stored] in SHORT_LEVELS else WeightFormat.LEVELS8
    assert set(compiled_decoder(Shape(stored=stored), Setting("w8a8")).weight_formats) == {levels}


# The format of weights that no shorter one holds: once quantized, all but short levels take 8 bits.
LONGEST = {None: WeightFormat.FLOAT32} | dict.fromkeys(LEVELS, WeightFormat.LEVELS8)
LENGTHENED = [
    (stored, quantization)
    for stored, shortest in sorted(STORED.items())
    for quantization, longest in LONGEST.items()
    if shortest in SHORT_LEVELS or shortest > longest
]


@pytest.mark.parametrize("rows", [1, 4, 6, 10, 11, 33])
@pytest.mark.parametrize(("stored", "quantization"), LENGTHENED)
def test_formats_change_no_bit_of_a_result(stored: str, quantization: str | None, rows: int) -> None:
    """One row of the head that needs a longer format makes all of it take that, which the others must not notice."""
    shape, setting = Shape(hidden=75, stored=stored), Setting(quantization)
    random = np.random.default_rng(rows)
    hidden = random.standard_normal((rows, 75), np.float32)
    weights = shape.weights()
    assert weights.lm_head is not None
    longer = weights.lm_head.weight.copy()
    longer[-1] = random.standard_normal(75)
    as_it_is = compiled_decoder(shape, setting, weights)
    lengthened = compiled_decoder(shape, setting, dataclasses.replace(weights, lm_head=LinearWeights(longer)))
    assert as_it_is.weight_formats[-1] is STORED[stored]
    assert lengthened.weight_formats[-1] is (LONGEST[quantization])
    assert_same_bits([head_of(as_it_is, hidden)[:, :-1]], [head_of(lengthened, hidden)[:, :-1]])


@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
def test_the_head_alone_rounds_activations_as_plain_numpy_does(quantization: str) -> None:
    shape = Shape(hidden=72, biased=frozenset({"lm_head"}))
    hidden = np.random.default_rng(1).standard_normal((13, 72), np.float32)
    hidden[3, :32] = 0.0
    hidden[4, 40] = 1e4
    decoder = compiled_decoder(shape, Setting(quantization))
    np.testing.assert_allclose(head_of(decoder, hidden), exact_head(shape, hidden, quantization), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
@pytest.mark.parametrize("size", [1e-36, 1e-38, 1e-42, 1e-45])
def test_activations_next_to_zero_count_as_next_to_nothing(quantization: str, size: float) -> None:
    # The step of such a group is so small that its inverse is no float32 any more.
    shape = Shape(hidden=72)
    hidden = np.random.default_rng(1).standard_normal((5, 72), np.float32)
    hidden[:, 32:64] *= np.float32(size)
    cleared = hidden.copy()
    cleared[:, 32:64] = 0
    for decoder in (compiled_decoder(shape, Setting(quantization)), paddle_decoder(shape, Setting(quantization))):
        np.testing.assert_allclose(head_of(decoder, hidden), head_of(decoder, cleared), rtol=0, atol=1e-30)


def head_of(decoder: Executor, hidden: FloatArray) -> FloatArray:
    logits: FloatArray = decoder.compute_logits(paddle.to_tensor(hidden)).numpy()
    return logits


def exact_head(shape: Shape, hidden: FloatArray, quantization: str) -> np.ndarray:
    """The head on levels counted in float32, as both executors count them, summed up in float64."""
    head = shape.weights().lm_head
    assert head is not None
    assert head.bias is not None
    rounded = np.zeros(hidden.shape)
    levels = np.float32(LEVELS[quantization])
    for start in range(0, hidden.shape[1], 32):
        group = hidden[:, start : start + 32]
        most = np.abs(group).max(axis=1, keepdims=True)
        inverse = np.divide(levels, most, out=np.zeros_like(most), where=most > 0)
        rounded[:, start : start + 32] = np.rint(group * inverse).astype(np.float64) * (most / levels)
    return rounded @ quantized_weight(head.weight).T + head.bias


# The same bits in every company


@EXAMPLES
@given(shapes(), settings_of_a_run(), st.data())
def test_rows_have_the_same_bits_alone_in_a_crowd_and_cut_anywhere(
    shape: Shape, setting: Setting, data: st.DataObject
) -> None:
    seats = data.draw(crowds(shape, setting))
    alone = run_alone(compiled_decoder(shape, setting), seats)
    others = Seats(seats.tokens, setting.block_size, range(setting.num_blocks * 4, 0, -1))
    roomy = dataclasses.replace(setting, num_blocks=setting.num_blocks * 4 + 1)
    crowd = run_schedule(compiled_decoder(shape, roomy), others, data.draw(schedules(others)))
    assert_same_bits(crowd, alone)


@settings(max_examples=15)
@given(shapes(), settings_of_a_run(), st.data())
def test_only_the_rows_asked_for_are_given_and_have_the_same_bits(
    shape: Shape, setting: Setting, data: st.DataObject
) -> None:
    seats = data.draw(crowds(shape, setting))
    decoder = compiled_decoder(shape, setting)
    whole = run_alone(decoder, seats)
    schedule = data.draw(thrifty_schedules(seats))
    found = run_schedule(decoder, seats, schedule)
    pieces = [piece for step in schedule for piece in step]
    for index, logits in enumerate(whole):
        asked = [range(p.stop - p.num_outputs, p.stop) for p in pieces if p.sequence == index]
        rows = np.array([row for rows in asked for row in rows], int)
        np.testing.assert_array_equal(found[index].view(np.uint32), logits[rows].view(np.uint32))


@pytest.mark.parametrize("quantization", PRECISIONS)
def test_a_token_at_a_time_gives_the_bits_of_the_whole_prompt(quantization: str | None) -> None:
    shape, setting = Shape(), Setting(quantization, "float16", block_size=20)
    seats = Seats(tokens_of(90, shape=shape), 20, [7, 3, 5, 2, 9])
    decoder = compiled_decoder(shape, setting)
    whole = run_alone(decoder, seats)
    steps = [[Piece(0, position, position + 1, 1)] for position in range(90)]
    assert_same_bits(run_schedule(decoder, seats, steps), whole)


@pytest.mark.parametrize("quantization", PRECISIONS)
def test_any_number_of_decoding_rows_has_the_same_bits(quantization: str | None) -> None:
    # Products take rows in tiles of up to ten: every height and every split into tiles comes up.
    shape, setting, most = Shape(layers=1), Setting(quantization), 33
    seats = Seats(tokens_of(*range(1, most + 1), shape=shape), 16, range(1, 200))
    decoder = compiled_decoder(shape, setting)
    run(decoder, seats, [Piece(index, 0, index + 1, 0) for index in range(most)])
    last = [Piece(index, index, index + 1, 1) for index in range(most)]
    alone = [run(decoder, seats, [piece])[0] for piece in last]
    for rows in range(2, most + 1):
        assert_same_bits(run(decoder, seats, last[:rows]), alone[:rows])


@pytest.mark.parametrize("stored", sorted(STORED))
@pytest.mark.parametrize("hidden", [96, 128, 300, 389])
def test_rows_multiplied_in_pieces_have_the_bits_of_one_alone(stored: str, hidden: int) -> None:
    """Pieces are 128 inputs and tiles up to 12 rows, so some of these sizes end within a piece, a group or a step."""
    shape, most = Shape(hidden=hidden, layers=1, stored=stored, biased=frozenset({"lm_head"})), 40
    x = np.random.default_rng(hidden).standard_normal((most, hidden), np.float32)
    decoder = compiled_decoder(shape, Setting())
    alone = [head_of(decoder, x[row : row + 1])[0] for row in range(most)]
    head = shape.weights().lm_head
    assert head is not None
    assert head.bias is not None
    np.testing.assert_allclose(np.stack(alone), x.astype(np.float64) @ head.weight.T + head.bias, rtol=0, atol=1e-4)
    for rows in range(2, most + 1):
        assert_same_bits(list(head_of(decoder, x[:rows])), alone[:rows])


def digest_of_a_run() -> str:
    """One number for the bits of passes in every precision, and the threads that computed them."""
    digest = hashlib.sha256()
    for quantization in PRECISIONS:
        for cache_dtype in CACHE_DTYPES:
            shape, setting = Shape(head_dim=40, hidden=72, tied=True), Setting(quantization, cache_dtype, 4)
            seats = Seats(tokens_of(80, 1, 33, 64, 7, shape=shape), 4, range(1, 200))
            whole = [Piece(index, 0, len(tokens), len(tokens)) for index, tokens in enumerate(seats.tokens)]
            for logits in run(compiled_decoder(shape, setting), seats, whole):
                digest.update(logits.tobytes())
    return digest.hexdigest()


def test_any_number_of_threads_gives_the_same_bits(ops: ctypes.CDLL) -> None:
    threads = 3
    assert ops.fdlp_num_threads() == int(os.environ["OMP_NUM_THREADS"]) != threads
    program = (
        "import warnings; warnings.simplefilter('ignore'); import model_executor.test_compiled_decoder as test; "
        "from fastdeploy_lp.model_executor.ops import compiled_ops; "
        "print(compiled_ops().fdlp_num_threads(), test.digest_of_a_run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=server_environment() | {"OMP_NUM_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(threads), digest_of_a_run()]


# The cache


@settings(max_examples=15)
@given(
    st.sampled_from(BLOCK_SIZES),
    st.sampled_from(CACHE_DTYPES),
    st.sampled_from((8, 16, 40, 64)),
    st.integers(1, 60),
    st.data(),
)
def test_what_the_cache_held_before_does_not_show_even_if_it_is_not_a_number(
    block_size: int, cache_dtype: str, head_dim: int, length: int, data: st.DataObject
) -> None:
    shape, setting = Shape(head_dim=head_dim, layers=1), Setting(None, cache_dtype, block_size, 90, num_blocks=91)
    weights = shape.weights()
    poison = shape.vocab - 1
    weights.embedding[poison] = np.nan
    tokens = [tokens_of(length, shape=shape)[0] % poison]
    seats = Seats(tokens, block_size, data.draw(st.permutations(range(1, setting.num_blocks))))
    clean = run_alone(compiled_decoder(shape, setting, weights), seats)
    used = compiled_decoder(shape, setting, weights)
    for block in {0, *seats.tables[0].tolist()}:
        filling = SequenceChunk(np.full(block_size, poison), 0, np.array([block]))
        assert np.isnan(used.forward([filling]).numpy()).all()
    assert_same_bits(run_alone(used, seats), clean)
    assert_same_bits(run_schedule(used, seats, data.draw(schedules(seats))), clean)


@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
# Few rows are quantized one by one, many together.
@pytest.mark.parametrize("count", [3, 9, 20])
def test_a_sequence_that_is_not_a_number_shows_in_no_other(quantization: str, count: int) -> None:
    shape, setting = Shape(), Setting(quantization)
    weights, poison = shape.weights(), shape.vocab - 1
    weights.embedding[poison] = np.nan
    decoder = compiled_decoder(shape, setting, weights)

    def hidden(tokens: list[int]) -> NDArray[np.float32]:
        chunks = [SequenceChunk(np.array([token]), 0, np.array([1 + slot])) for slot, token in enumerate(tokens)]
        return decoder.forward(chunks).numpy()

    tokens = [token % poison for token in tokens_of(count, shape=shape)[0].tolist()]
    clean = hidden(tokens)
    tokens[1] = poison
    spoiled = hidden(tokens)
    assert np.isnan(spoiled[1]).all()
    assert_same_bits([np.delete(spoiled, 1, 0)], [np.delete(clean, 1, 0)])


@pytest.mark.parametrize(
    ("block_size", "cache_dtype"), [(size, CACHE_DTYPES[number % 2]) for number, size in enumerate(BLOCK_SIZES)]
)
def test_a_context_of_exactly_max_model_len_is_right(block_size: int, cache_dtype: str) -> None:
    length = 611  # neither a multiple of a vector nor of a block
    shape = Shape(layers=1)
    setting = Setting(None, cache_dtype, block_size, max_model_len=length, num_blocks=620)
    seats = Seats(tokens_of(length, shape=shape), block_size, range(619, 0, -1))
    decoder = compiled_decoder(shape, setting)
    (whole,) = run_alone(decoder, seats)
    expected = reference_logits(shape.weights(), shape.dimensions, seats.tokens[0], half_cache=cache_dtype == "float16")
    assert_near(whole, expected, setting)
    assert_same_bits(run(decoder, seats, [Piece(0, length - 1, length, 1)]), [whole[-1:]])


def test_a_tables_entries_beyond_the_context_do_not_matter() -> None:
    shape, setting = Shape(), Setting()
    seats = Seats(tokens_of(20, shape=shape), 16, [3, 4])
    decoder = compiled_decoder(shape, setting)
    expected = run_alone(decoder, seats)
    seats.tables[0] = np.array([3, 4, 10**6, -5])
    assert_same_bits(run_alone(decoder, seats), expected)


def test_passes_that_ask_for_nothing_give_nothing_and_still_write_the_cache() -> None:
    shape, setting = Shape(), Setting()
    seats = Seats(tokens_of(20, 30, shape=shape), 16, [1, 2, 3, 4])
    expected = run_alone(compiled_decoder(shape, setting), seats)
    decoder = compiled_decoder(shape, setting)
    silent = run(decoder, seats, [Piece(0, 0, 19, 0), Piece(1, 0, 29, 0)])
    assert [logits.shape for logits in silent] == [(0, shape.vocab)] * 2
    last = run(decoder, seats, [Piece(0, 19, 20, 1), Piece(1, 29, 30, 1)])
    assert_same_bits(last, [logits[-1:] for logits in expected])


def test_two_decoders_do_not_share_anything() -> None:
    shape, setting = Shape(), Setting("w8a8")
    seats = Seats(tokens_of(20, shape=shape), 16, [1, 2])
    first = compiled_decoder(shape, setting)
    expected = run_alone(first, seats)
    second = compiled_decoder(dataclasses.replace(shape, seed=1), setting)
    assert not np.array_equal(run_alone(second, seats)[0], expected[0])
    last = [Piece(0, 19, 20, 1)]
    assert_same_bits(run(first, seats, last), [expected[0][-1:]])


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
def test_a_cache_that_is_allocated_again_is_an_empty_one(cache_dtype: str) -> None:
    """As where memory is measured first, with few blocks."""
    shape, setting = Shape(layers=2), Setting(None, cache_dtype, 8, 64, num_blocks=4)
    weights = shape.weights()
    poison = shape.vocab - 1
    weights.embedding[poison] = np.nan
    used, fresh = compiled_decoder(shape, setting, weights), compiled_decoder(shape, setting, weights)
    for block in range(setting.num_blocks):
        used.forward([SequenceChunk(np.full(8, poison), 0, np.array([block]))])
    for decoder in (used, fresh):
        decoder.initialize_cache(9)
    # The first block is read as it is, since nothing was written there; the last one exists only now.
    chunk = SequenceChunk(np.arange(8), 8, np.array([1, 8]), num_outputs=8)
    assert_same_bits([used.forward([chunk]).numpy()], [fresh.forward([chunk]).numpy()])
