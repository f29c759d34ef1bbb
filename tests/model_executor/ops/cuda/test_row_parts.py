"""Blocks that share a row merge what they find in its parts: the bits of the CPU wherever a part begins or ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_check_kernels import differences, shim_device
from kernel_cases import Case, case
from kernel_sides import OPERATIONS, Arrays, CompiledSide, KernelSide, Side, same_bits
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.cuda import row_arguments
from fastdeploy_lp.model_executor.ops.cuda.device import DeviceArray
from fastdeploy_lp.model_executor.ops.cuda.row_arguments import LEAST_PART as PART
from fastdeploy_lp.model_executor.ops.cuda.row_arguments import MOST_PART, parts_of, span_of
from fastdeploy_lp.model_executor.ops.cuda.row_kernels import DIGITS, MOST_LISTED
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.row_ops import Cut, Draws

Random = np.random.Generator
ORDERS = ("forward", "backward", "shuffled")
# Those that depend on the parameters of draws; `cut` alone depends on the kind of the cut.
DRAWING = ("draw", "filtered")

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")


@pytest.fixture(scope="module")
def compiled() -> Side:
    library = compiled_ops()
    if library is None:
        pytest.skip("no compiled operators here")
    return CompiledSide(library)


def case_of(*rows: NDArray[np.float32], cut: Cut = Cut.TYPICAL, seed: int = 0, **draws: Any) -> Case:
    """These rows; the draws' parameters are numbers for all of them, or one for each."""
    random, logits = np.random.default_rng(seed), np.stack(rows)
    count, size = logits.shape
    plain = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "uniform": 0.5} | draws
    arrays = {
        name: np.broadcast_to(np.asarray(value, np.int64 if name == "top_k" else np.float32), count).copy()
        for name, value in plain.items()
    }
    made = case(random, count, size)
    made = replace(made, logits=logits, draws=Draws(**arrays), listed=min(20, size))
    return with_cut(made, cut)


def with_cut(given: Case, cut: Cut) -> Case:
    """With shares of the whole, which every cut takes."""
    return replace(given, cut=cut, cut_values=given.cut_values % np.float32(1))


def normal(size: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size, np.float32) * np.float32(3)


def same(
    compiled: Side,
    given: Case,
    order: str = "forward",
    threads: int = 64,
    operations: Sequence[str] = OPERATIONS,
) -> bool:
    return differences(KernelSide(shim_device(order), threads), compiled, [given], operations) == {}


def test_the_sources_and_the_launches_have_the_same_constants() -> None:
    headers = KernelSources.read().headers
    for file, text in {
        "parts.cuh": f"constexpr int kLeastPart = {PART}, kMostPart = {MOST_PART};",
        "lists.cuh": f"constexpr int kMostListed = {MOST_LISTED};",
        "select.cuh": f"constexpr int kDigits = {DIGITS};",
    }.items():
        assert text in headers[file]


@pytest.mark.parametrize("size", [PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 1, 3 * PART + 1027])
@pytest.mark.parametrize("cut", Cut)
def test_rows_end_anywhere_in_a_part(compiled: Side, size: int, cut: Cut) -> None:
    random = np.random.default_rng(size + cut)
    given = case(random, 4, size)
    operations = OPERATIONS if cut < len(ORDERS) else ("cut",)
    assert same(compiled, with_cut(given, cut), ORDERS[cut % 3], operations=operations)


@pytest.mark.parametrize("cut", Cut)
def test_equal_logits_of_several_parts_are_cut_alike(compiled: Side, cut: Cut) -> None:
    flat, ties = equal_logits()
    assert same(compiled, case_of(*[flat, ties] * 5, cut=cut), ORDERS[cut % 3], operations=("cut",))


def equal_logits() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows of four parts: all logits are equal, or many are."""
    size = 3 * PART + 5
    flat, ties = np.zeros(size, np.float32), np.round(normal(size))
    ties[[0, PART - 1, PART, 2 * PART, size - 1]] = 20
    return flat, ties


@pytest.mark.parametrize("order", ORDERS)
def test_equal_logits_of_several_parts_are_kept_in_their_order(compiled: Side, order: str) -> None:
    flat, ties = equal_logits()
    size = len(flat)
    top_k = [1, 3, 4, 5, 6, 500, PART, PART + 1, 2 * PART + 7, size]
    for row in (flat, ties):
        rows = [row] * len(top_k)
        uniform = np.linspace(0.05, 1, len(top_k))
        assert same(compiled, case_of(*rows, top_k=top_k, uniform=uniform), order)
        for draws in (
            {"top_k": top_k, "top_p": 0.7, "uniform": uniform},
            {"top_p": np.linspace(1e-6, 0.999, len(top_k)), "uniform": 1.0},
        ):
            assert same(compiled, case_of(*rows, **draws), order, operations=DRAWING)


@pytest.mark.parametrize("part", range(4))
def test_one_part_may_have_all_of_the_weight(compiled: Side, part: int) -> None:
    row = np.full(3 * PART + 100, -np.inf, np.float32)
    row[part * PART : part * PART + 50] = normal(50)
    alone = np.full(len(row), -1e4, np.float32)
    alone[min((part + 1) * PART, len(row)) - 1] = 3
    assert same(compiled, case_of(row, alone), ORDERS[part % 3])
    for uniform in (2.0**-24, 0.5, 1.0):
        for filters in ({}, {"top_k": 20}, {"top_p": 0.8}, {"top_k": 70, "top_p": 0.9, "min_p": 0.01}):
            given = case_of(row, alone, uniform=uniform, **filters)
            assert same(compiled, given, ORDERS[part % 3], operations=DRAWING)


def test_the_first_of_equal_maxima_is_the_one_of_the_first_part(compiled: Side) -> None:
    row = normal(3 * PART)
    row[[PART + 7, 2 * PART + 1]] = 50
    (token,) = KernelSide(shim_device("backward"), 64).draw(case_of(row, temperature=0.0))
    assert token.tolist() == [PART + 7]


@pytest.mark.parametrize("place", [0, PART - 1, PART, 3 * PART - 1])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_nan_in_any_part_leaves_the_row_without_a_token(compiled: Side, place: int, value: float) -> None:
    bad, good = normal(3 * PART), normal(3 * PART, 1)
    bad[place] = value
    given = case_of(bad, good, top_k=5, top_p=0.9)
    (tokens,) = KernelSide(shim_device("backward"), 64).draw(given)
    assert tokens[0] == -1
    assert tokens[1] >= 0
    assert same(compiled, given)


@pytest.mark.parametrize(("count", "threads"), [(0, 32), (1, 256), (20, 32), (64, 256)])
def test_lists_of_parts_become_the_list_of_the_row(compiled: Side, count: int, threads: int) -> None:
    """With all of the tokens in one part, some in each, and a last part of fewer tokens than are listed."""
    size = 2 * PART + 9
    spread = np.full(size, -5, np.float32)
    spread[:: PART // 10] = np.arange(len(spread[:: PART // 10]))
    rising, tail = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
    tail[-9:] = 1
    banned = np.full(size, -np.inf, np.float32)
    banned[PART + 3] = 0
    rows = (spread, rising, -rising, tail, banned, np.round(normal(size)))
    assert same(compiled, replace(case_of(*rows, top_k=count), listed=count), "shuffled", threads)
    for draws in ({"top_p": 0.6}, {"temperature": 0.02, "min_p": 0.1}, {"top_p": 0.95, "uniform": 1.0}):
        assert same(compiled, case_of(*rows, top_k=count, **draws), "shuffled", threads, DRAWING)


@pytest.mark.parametrize("top_k", [63, 64, 65])
def test_short_and_long_lists_share_a_batch(compiled: Side, top_k: int) -> None:
    rows = [normal(PART + 100, seed) for seed in range(6)]
    given = case_of(
        *rows, temperature=[1, 1, 1, 0, 0.5, 1], top_k=[top_k, 3, 0, 5, 700, 64], top_p=[1, 0.8, 0.9, 0.5, 0.7, 1]
    )
    assert same(compiled, given, "backward", 256, DRAWING)


@pytest.mark.parametrize("threads", [32, 96, 256])
def test_filtered_rows_that_are_not_aligned(compiled: Side, threads: int) -> None:
    rows = [normal(PART + extra, seed) for seed, extra in enumerate([2] * 5)]
    given = case_of(*rows, top_k=[0, 3, 0, 7, 0], top_p=[1, 1, 0.9, 0.5, 1], min_p=[0, 0, 0, 0, 0.1])
    assert same(compiled, given, threads=threads, operations=DRAWING)


class Repeated:
    """A device that queues each kernel of an operation, and runs them all twice in the same memory."""

    def __init__(self) -> None:
        self._device = shim_device("backward")
        self._launches: list[tuple[Any, ...]] = []
        self._held: list[DeviceArray] = []

    def launch(self, *launch: Any) -> None:
        self._launches.append(launch)

    def upload(self, host: NDArray[Any]) -> DeviceArray:
        self._held.append(self._device.upload(host))
        return self._held[-1]

    def empty(self, size: int) -> DeviceArray:
        self._held.append(self._device.empty(size))
        return self._held[-1]

    def read(self, address: int, target: NDArray[Any]) -> None:
        for launch in self._launches * 2:
            self._device.launch(*launch)
        self._launches.clear()
        self._device.read(address, target)


RUNS: dict[str, Callable[[Side, Case], Arrays]] = {
    "draw": lambda side, given: side.draw(given),
    "filtered": lambda side, given: side.filtered(given),
    "logprobs": lambda side, given: side.logprobs(given),
    "compare": lambda side, given: side.compare(given),
    "mask": lambda side, given: side.mask(given),
}


@pytest.mark.parametrize("name", RUNS)
def test_passes_leave_nothing_behind_that_changes_a_second_time(compiled: Side, name: str) -> None:
    rows = [normal(2 * PART + 3, seed) for seed in range(4)]
    run = RUNS[name]
    for top_k in ([0, 0, 30, 900], [0, 0, 0, 0], [0, 5, 0, 900]):
        given = case_of(*rows, temperature=[1, 0, 0.7, 2], top_k=top_k, top_p=[0.9, 0.3, 0.8, 1])
        assert same_bits(run(KernelSide(Repeated(), 64), given), run(compiled, given))


def test_ties_that_are_counted_anew_in_each_part_are_found(compiled: Side) -> None:
    sources = KernelSources.read()
    headers, right = dict(sources.headers), "kept.ties - reached.counted"
    assert headers["draws.cuh"].count(right) == 1
    headers["draws.cuh"] = headers["draws.cuh"].replace(right, "kept.ties")
    side = KernelSide(shim_device("forward", KernelSources(sources.main, headers)), 64)
    row = np.zeros(2 * PART, np.float32)
    row[-1] = 1
    given = case_of(row, top_k=PART + 99, uniform=1.0)
    assert set(differences(side, compiled, [given])) == {"draw"}
    assert same(compiled, given, operations=DRAWING)


@pytest.mark.parametrize(
    ("rows", "size"), [(0, 5), (1, 1), (1, 151_936), (8, 151_936), (256, 151_936), (4096, 151_936)]
)
def test_parts_are_short_for_few_rows_and_long_for_many(rows: int, size: int) -> None:
    span = span_of(rows, size)
    assert span % PART == 0
    assert PART <= span <= MOST_PART
    assert rows * parts_of(rows, size) <= row_arguments.BLOCKS or span == MOST_PART
    assert span == PART or rows * -(-size // (span - PART)) > row_arguments.BLOCKS


@pytest.mark.parametrize("blocks", [1, 7, 12])
@pytest.mark.parametrize("cut", Cut)
def test_parts_of_any_length(compiled: Side, blocks: int, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_arguments, "BLOCKS", blocks)
    size = MOST_PART + 3 * PART + 77
    flat, ties = np.zeros(size, np.float32), np.round(normal(size))
    given = case_of(flat, ties, normal(size), cut=cut, top_k=[PART + 1, 5, 0], uniform=[0.9, 0.4, 0.999])
    # Each of the numbers of blocks has every operation in an order of its own, and every cut.
    operations = OPERATIONS if cut % 3 == blocks % 3 else ("cut",)
    assert same(compiled, given, ORDERS[cut % 3], operations=operations)
