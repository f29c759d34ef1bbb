"""Products in tiles have the bits of products without them: emulated everywhere, by AMX where the processor has it."""

from __future__ import annotations

import ctypes

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoders import (
    Piece,
    Seats,
    Setting,
    Shape,
    compiled_decoder,
    crowds,
    run_alone,
    run_schedule,
    schedules,
    settings_of_a_run,
    shapes,
)
from support.tiles import UNITS, passes_on

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.model_executor.ops import CompiledDecoder
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat
from fastdeploy_lp.model_executor.ops.tiles import TileUnit

PRECISIONS = ("w8a8", "w8a16")
# Types of weights that are packed in 8 and in 4 bits.
STORED = {"Q8_0": WeightFormat.LEVELS8, "Q4_1": WeightFormat.LEVELS4}
OFF = TileUnit.SWITCHED_OFF


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
def test_rows_that_are_no_numbers_stay_alone(precision: str, unit: TileUnit, ops: ctypes.CDLL) -> None:
    decoder, hidden = head(70, 40, "Q8_0", precision), rows_of(81, 70)
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
@given(shapes(), settings_of_a_run((*PRECISIONS, "bfloat16")), st.data())
def test_a_whole_model(unit: TileUnit, ops: ctypes.CDLL, shape: Shape, setting: Setting, data: st.DataObject) -> None:
    """Prompts alone, in chunks and in batches, on all threads."""
    seats = data.draw(crowds(shape, setting))
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
    """A thread keeps no tiles after a pass: the next one may use the other unit."""
    shape, setting = Shape(), Setting("w8a8")
    seats = Seats([np.arange(50)], 16, [4, 2, 7, 1])
    decoder = compiled_decoder(shape, setting)
    found = []
    for each in (OFF, unit, OFF, TileUnit.EMULATED, unit, unit):
        with passes_on(ops, each):
            found.append(run_schedule(decoder, seats, [[Piece(0, 0, 33, 33)], [Piece(0, 33, 50, 17)]])[0])
    for each in found[1:]:
        assert_same_bits(each, found[0])
