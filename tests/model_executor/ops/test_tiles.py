"""Products in tiles have the bits of products without them: emulated everywhere, by AMX where the processor has it."""

from __future__ import annotations

import ctypes

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoders import (
    MAX_MODEL_LENS,
    Piece,
    Seats,
    Setting,
    Shape,
    compiled_decoder,
    crowds,
    run,
    run_alone,
    run_schedule,
    schedules,
    settings_of_a_run,
    shapes,
)
from support.tiles import UNITS, passes_on, tile_loads

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.model_executor.models.decoder import CompiledDecoder
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat
from fastdeploy_lp.model_executor.ops.tiles import TileUnit

PRECISIONS = ("w8a8", "w8a16")
# Types of weights that are packed in 8 and in 4 bits.
STORED = {"Q8_0": WeightFormat.LEVELS8, "Q4_1": WeightFormat.LEVELS4}
OFF = TileUnit.SWITCHED_OFF
# `kLeastRows` of `csrc/decoder/int8_tiles.h`: products of 8 bits with fewer rows do without tiles.
LEAST_ROWS = 64
LONG_ENOUGH = [length for length in MAX_MODEL_LENS if length >= LEAST_ROWS]


def head(into: int, out: int, stored: str, precision: str, *, biased: bool = False) -> CompiledDecoder:
    """A decoder whose head [out, into] is the product under test."""
    names = frozenset(("lm_head",) if biased else ())
    shape = Shape(hidden=into, vocab=out, layers=1, stored=stored, biased=names)
    decoder = compiled_decoder(shape, Setting(precision))
    assert decoder.weight_formats[-1] is STORED[stored]
    return decoder


def products(decoder: CompiledDecoder, hidden: FloatArray) -> FloatArray:
    logits: FloatArray = decoder.compute_logits(paddle.to_tensor(hidden)).numpy()
    return logits


def assert_same_bits(actual: FloatArray, expected: FloatArray) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def rows_of(count: int, into: int) -> FloatArray:
    """Rows of different sizes of numbers; in some groups all are zero."""
    random = np.random.default_rng(count)
    rows = random.standard_normal((count, into), np.float32) * np.exp(random.uniform(-9, 9, (count, 1)))
    rows[random.random(rows.shape) < 0.1] = 0
    rows[::3, :32] = 0
    return rows.astype(np.float32)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("into", "out"), [(8, 3), (32, 32), (40, 70), (96, 33)])
def test_any_number_of_rows(into: int, out: int, stored: str, precision: str, unit: TileUnit, ops: ctypes.CDLL) -> None:
    """Partial groups, panels and blocks of 16 rows."""
    decoder, hidden = head(into, out, stored, precision, biased=out == 70), rows_of(85, into)
    with passes_on(ops, OFF):
        expected = products(decoder, hidden)
        np.testing.assert_array_equal(expected, np.concatenate([products(decoder, row[None]) for row in hidden]))
    with passes_on(ops, unit):
        for rows in (*range(1, 18), *range(62, 86)):
            assert_same_bits(products(decoder, hidden[:rows]), expected[:rows])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("into", [768, 800, 1700])
def test_more_groups_and_rows_than_a_part_holds(
    into: int, stored: str, precision: str, unit: TileUnit, ops: ctypes.CDLL
) -> None:
    """A panel is divided after 24 groups, rows after 256: one part, two, three; whole blocks and one that overlaps."""
    decoder, hidden = head(into, 40, stored, precision), rows_of(517, into)
    with passes_on(ops, OFF):
        expected = products(decoder, hidden)
    with passes_on(ops, unit):
        for rows in (64, 256, 257, 517):
            assert_same_bits(products(decoder, hidden[:rows]), expected[:rows])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("precision", PRECISIONS)
# Few groups are quantized one by one, many by 16 together.
@pytest.mark.parametrize("into", [70, 700])
def test_rows_that_are_no_numbers_stay_alone(into: int, precision: str, unit: TileUnit, ops: ctypes.CDLL) -> None:
    decoder, hidden = head(into, 40, "Q8_0", precision), rows_of(81, into)
    with passes_on(ops, OFF):
        expected = products(decoder, hidden)
    hidden[3, 69], hidden[12, 0], hidden[80, 33] = np.nan, np.inf, -np.inf
    spoiled = [3, 12, 80]
    with passes_on(ops, unit):
        found = products(decoder, hidden)
    assert np.isnan(found[spoiled]).all()
    assert_same_bits(np.delete(found, spoiled, 0), np.delete(expected, spoiled, 0))


@pytest.mark.parametrize("unit", UNITS)
@settings(max_examples=15, deadline=None)
@given(shapes(), settings_of_a_run((*PRECISIONS, "bfloat16"), LONG_ENOUGH), st.data())
def test_a_whole_model(unit: TileUnit, ops: ctypes.CDLL, shape: Shape, setting: Setting, data: st.DataObject) -> None:
    """Prompts alone, in chunks and in batches, on all threads."""
    least = 1 if setting.quantization == "bfloat16" else LEAST_ROWS
    seats = data.draw(crowds(shape, setting, least))
    with passes_on(ops, OFF):
        expected = run_alone(compiled_decoder(shape, setting), seats)
    with passes_on(ops, unit):
        alone = run_alone(compiled_decoder(shape, setting), seats)
        chunks = run_schedule(compiled_decoder(shape, setting), seats, data.draw(schedules(seats)))
    for logits, *others in zip(expected, alone, chunks, strict=True):
        for other in others:
            assert_same_bits(other, logits)


@pytest.mark.parametrize("unit", UNITS)
def test_switching_between_passes(unit: TileUnit, ops: ctypes.CDLL) -> None:
    """A thread keeps no tiles after a pass, so each pass loads them: the next one may use the other unit."""
    shape, setting = Shape(), Setting("w8a8", max_model_len=144)
    seats = Seats([np.arange(135) % shape.vocab], 16, [4, 2, 7, 1, 9, 3, 8, 5, 6])
    decoder = compiled_decoder(shape, setting)
    found = []
    for each in (OFF, unit, OFF, TileUnit.EMULATED, unit, unit):
        logits = []
        for start, stop in ((0, 70), (70, 135)):
            with passes_on(ops, each):
                logits += run(decoder, seats, [Piece(0, start, stop, stop - start)])
        found.append(np.concatenate(logits))
    for each in found[1:]:
        assert_same_bits(each, found[0])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stored", STORED)
def test_rows_from_which_tiles_are_used(stored: str, precision: str, ops: ctypes.CDLL) -> None:
    decoder = head(40, 33, stored, precision)
    with passes_on(ops, TileUnit.EMULATED):
        loads = [tile_loads(ops)]
        for rows in (LEAST_ROWS - 1, LEAST_ROWS, LEAST_ROWS + 1):
            products(decoder, rows_of(rows, 40))
            loads.append(tile_loads(ops))
    assert (np.diff(loads) > 0).tolist() == [False, True, True]
