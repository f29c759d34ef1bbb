"""Launches of the kernels on rows of logits, which are named by their addresses: no Paddle is needed."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.device import Device, DeviceArray
from fastdeploy_lp.model_executor.ops.cuda.row_arguments import (
    ComparisonArgument,
    CutsArgument,
    DrawsArgument,
    ListingArgument,
    ListsArgument,
    RowsArgument,
    list_bytes,
    parts_of,
    scratch_bytes,
    span_of,
)
from fastdeploy_lp.model_executor.ops.row_ops import Bits, Cut, Draws, Floats, Int64s, Penalties, TokenLists

# Threads of a block that works on a part of a row: each reads 16 logits at once.
PART_THREADS = 256
# Of one that adds numbers in the order of the CPU: a strip has 8 or 16 lanes.
STRIP_THREADS = 64
# Of a block that works on a list of a row, and of one whose threads each change one logit.
LIST_THREADS = 512
ENTRY_THREADS = 256
# Passes that find the last logit of a selection, each a digit of it.
DIGITS = 3
# As in `kernels/lists.cuh`.
MOST_LISTED = 64
ALIGNMENT = 16


@dataclass(frozen=True)
class Logits:
    """Contiguous float32 [rows, size] on the device."""

    address: int
    rows: int
    size: int


class RowKernels:
    """The operations of `RowOps` on a device; host arrays are C-contiguous, results are addresses on the device.

    threads: of a block that works on a row or a part of one, a multiple of 32; None chooses by the work.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self._device = device
        self._threads = threads
        self._last = _LastOperands(self._upload)

    def draw(self, logits: Logits, draws: Draws, tokens: int) -> None:
        """Writes the tokens, int64 [rows]."""
        operands, _held = self._upload(*_filters_of(draws), draws.uniform)
        given, _scratch = self._select(logits, draws, operands)
        self._of_parts("fdlp_draw_rows", logits, logits.rows, given, operands[-1], c_void_p(tokens))

    def filter(self, logits: Logits, draws: Draws, filtered: int) -> None:
        """Writes logits of the same shape."""
        operands, _held = self._upload(*_filters_of(draws))
        given, _scratch = self._select(logits, draws, operands)
        if _some(draws, (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)):
            self._of_parts("fdlp_find_last", logits, logits.rows, given)
        self._of_parts("fdlp_filter_rows", logits, logits.rows, given, c_void_p(filtered))

    def _select(
        self, logits: Logits, draws: Draws, operands: tuple[c_void_p, ...]
    ) -> tuple[DrawsArgument, tuple[DeviceArray, ...]]:
        """Scans rows and finds what top-k and top-p keep of them; returns it, and its memory."""
        short = (draws.top_k > 0) & (draws.top_k <= MOST_LISTED) & (draws.temperature != 0)
        listed = int(draws.top_k[short].max(initial=0))
        selections = (_some(draws, (draws.top_k > 0) & ~short), _some(draws, (draws.top_p < 1) & ~short))
        scratch = self._device.empty(scratch_bytes(logits.rows, logits.size))
        rows = _rows_argument(logits, logits.rows, scratch=scratch.address, selects=any(selections))
        lists = self._device.empty(list_bytes(logits.rows, logits.size, listed))
        given = DrawsArgument(rows, *operands[:4])
        if listed:
            of_parts = ListsArgument(lists.address, listed)
            self._of_parts("fdlp_list_draws", logits, logits.rows, given, of_parts)
            self._launch("fdlp_merge_draws", logits.rows, self._threads or PART_THREADS, given, of_parts)
        else:
            self._of_parts("fdlp_scan_rows", logits, logits.rows, rows)
        for by_mass in (0, 1):
            for digit in range(DIGITS if selections[by_mass] else 0):
                numbers = (c_int32(by_mass), c_int32(digit))
                self._of_parts("fdlp_select_rows", logits, logits.rows, given, *numbers)
        return given, (scratch, lists)

    def logprobs(
        self, logits: Logits, chosen: int, count: int, *, normalize: bool, values: int, tokens: int, ranks: int
    ) -> None:
        """Writes values float32 and tokens int64 [rows, 1 + count], and ranks int64 [rows], of `chosen` int64 [rows].

        Raises ValueError if there are not as many tokens to list.
        """
        if not 0 <= count <= min(MOST_LISTED, logits.size):
            raise ValueError(f"count: {count} is not allowed; 0 to {min(MOST_LISTED, logits.size)} are")
        scratch = self._device.empty(scratch_bytes(logits.rows, logits.size))
        lists = self._device.empty(list_bytes(logits.rows, logits.size, count))
        rows = _rows_argument(logits, logits.rows, scratch=scratch.address)
        given = ListingArgument(rows, ListsArgument(lists.address, count), chosen, normalize)
        self._of_parts("fdlp_list_rows", logits, logits.rows, given)
        self._of_parts("fdlp_row_logprobs", logits, logits.rows, given, *map(c_void_p, (values, tokens, ranks)))

    def compare(
        self, logits: Logits, before: Int64s, *, log_sums: int, entropies: int, moved: int, most_likely: int
    ) -> None:
        """Writes log sums, entropies and distances, float64 [rows], and most likely tokens, int64 [rows]."""
        rows, _scratch = self._scan(logits, logits.rows)
        weights = self._device.empty(logits.rows * logits.size * 4)
        inverses = self._device.empty(logits.rows * 8)
        given = ComparisonArgument(rows, weights.address, inverses.address)
        results = map(c_void_p, (log_sums, entropies, most_likely))
        self._of_strips("fdlp_weigh_rows", logits, logits.rows, given, *results)
        (earlier,), _held = self._upload(before)
        self._of_strips("fdlp_move_rows", logits, logits.rows, given, earlier, c_void_p(moved))

    def penalize(self, logits: Logits, penalties: Penalties) -> None:
        """Applies penalties in place."""
        lists = penalties.lists
        operands, _held = self._upload(
            *(lists.rows, lists.offsets, lists.tokens, penalties.counts),
            *(penalties.repetition, penalties.presence, penalties.frequency),
        )
        self._of_lists("fdlp_penalize", logits, len(lists.rows), *operands)

    def add(self, logits: Logits, rows: Int64s, tokens: Int64s, values: Floats | int) -> None:
        """Adds values, or float32 numbers of the device at an address, to single logits in place."""
        if isinstance(values, int):
            *operands, added = *self._last.of(_additions, logits.size, rows, tokens), c_void_p(values)
        else:
            *operands, added = self._last.of(_additions, logits.size, rows, tokens, values)
        places, order = operands if len(operands) == 2 else (operands[0], c_void_p())
        self._of_entries("fdlp_add", logits, len(rows), places, order, added)

    def add_scaled(self, logits: Logits, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """Adds values times the magnitudes of single logits in place."""
        operands, _held = self._upload(rows * logits.size + tokens, values)
        self._of_entries("fdlp_add_scaled", logits, len(rows), *operands)

    def values_at(self, logits: Logits, rows: Int64s, tokens: Int64s, values: int) -> None:
        """Writes single logits, float32 [n]."""
        operands, _held = self._upload(rows * logits.size + tokens)
        self._of_entries("fdlp_values_at", logits, len(rows), *operands, c_void_p(values))

    def ban(self, logits: Logits, rows: Int64s, tokens: Int64s) -> None:
        """Sets single logits to -inf in place."""
        operands = self._last.of(_places, logits.size, rows, tokens)
        self._of_entries("fdlp_ban", logits, len(rows), *operands)

    def allow_only(self, logits: Logits, lists: TokenLists) -> None:
        """Sets every token of the listed rows but the listed ones to -inf in place."""
        kept = self._device.empty(len(lists.tokens) * 4)
        self.values_at(logits, lists.row_of_token, lists.tokens, kept.address)
        (rows, *operands), _held = self._upload(lists.rows, lists.offsets, lists.tokens)
        given = _rows_argument(logits, len(lists.rows), rows)
        self._of_parts("fdlp_allow_only", logits, len(lists.rows), given, *operands, c_void_p(kept.address))

    def mask(self, logits: Logits, rows: Int64s, bits: Bits) -> None:
        """Sets tokens without their bit to -inf in place."""
        # Alone: packed with the rows, they would be copied once more.
        words = self._device.upload(bits)
        (of_rows,), _held = self._upload(rows)
        given = _rows_argument(logits, len(rows), of_rows)
        self._of_parts("fdlp_mask", logits, len(rows), given, c_void_p(words.address))

    def force(self, logits: Logits, rows: Int64s, tokens: Int64s) -> None:
        """Sets one token of each row to 0 and the others to -inf in place."""
        of_rows, forced = self._last.of(_as_they_are, logits.size, rows, tokens)
        self._of_parts("fdlp_force", logits, len(rows), _rows_argument(logits, len(rows), of_rows), forced)

    def cut(self, logits: Logits, cut: Cut, rows: Int64s, values: Floats) -> None:
        """Cuts rows in place."""
        of_rows, bounds = self._last.of(_as_they_are, logits.size, rows, values)
        scanned, _scratch = self._scan(logits, len(rows), of_rows, selects=cut is Cut.TYPICAL)
        given = CutsArgument(scanned, bounds, cut)
        if cut in (Cut.ETA, Cut.TYPICAL, Cut.TOP_N_SIGMA):
            self._of_strips("fdlp_measure_rows", logits, len(rows), given)
        elif cut is not Cut.MIN_P:
            self._of_parts("fdlp_measure_rows", logits, len(rows), given)
        for digit in range(DIGITS if cut is Cut.TYPICAL else 0):
            self._of_parts("fdlp_select_near", logits, len(rows), given, c_int32(digit))
        if cut is Cut.EXCLUDE_TOP:
            self._of_parts("fdlp_find_reaching", logits, len(rows), given)
        self._of_parts("fdlp_cut_rows", logits, len(rows), given)

    def copy_rows(self, logits: Logits, rows: Int64s, into: int) -> None:
        """Copies rows to consecutive ones at an address."""
        (of_rows,), _held = self._upload(rows)
        given = _rows_argument(logits, len(rows), of_rows)
        self._of_parts("fdlp_copy_rows", logits, len(rows), given, c_void_p(into))

    def _scan(
        self, logits: Logits, count: int, rows: c_void_p | None = None, *, selects: bool = False
    ) -> tuple[RowsArgument, DeviceArray]:
        """Launches the first pass over so many rows; returns what the others need, and its memory."""
        scratch = self._device.empty(scratch_bytes(count, logits.size))
        given = _rows_argument(logits, count, rows, scratch.address, selects=selects)
        self._of_parts("fdlp_scan_rows", logits, count, given)
        return given, scratch

    def _of_parts(self, kernel: str, logits: Logits, rows: int, *arguments: Any) -> None:
        """Launches a block for each part of some rows."""
        self._launch(kernel, rows * parts_of(rows, logits.size), self._threads or PART_THREADS, *arguments)

    def _of_strips(self, kernel: str, logits: Logits, rows: int, *arguments: Any) -> None:
        """The same, for blocks that add the strips of their part."""
        self._launch(kernel, rows * parts_of(rows, logits.size), self._threads or STRIP_THREADS, *arguments)

    def _of_lists(self, kernel: str, logits: Logits, lists: int, *arguments: Any) -> None:
        """Launches a block for each of some rows."""
        first = (c_void_p(logits.address), c_int32(logits.size))
        self._launch(kernel, lists, self._threads or LIST_THREADS, *first, *arguments)

    def _of_entries(self, kernel: str, logits: Logits, entries: int, *arguments: Any) -> None:
        """Launches a thread for each entry."""
        first = (c_void_p(logits.address), c_int64(entries))
        self._launch(kernel, -(-entries // ENTRY_THREADS), ENTRY_THREADS, *first, *arguments)

    def _launch(self, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        if blocks > 0:
            self._device.launch(kernel, (blocks, 1), threads, *arguments)

    def _upload(self, *arrays: NDArray[Any]) -> tuple[tuple[c_void_p, ...], DeviceArray]:
        """Copies arrays in one piece; returns their addresses, and the memory, which must exist at the launch."""
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
        packed = np.empty(max(sum(sizes), ALIGNMENT), np.uint8)
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        for start, array in zip(starts, arrays, strict=True):
            packed[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        memory = self._device.upload(packed)
        return tuple(c_void_p(memory.address + start) for start in starts), memory


class _LastOperands:
    """Operands made from the arrays of the last call, kept for the next one with the same arrays.

    A request's edits often repeat from step to step, and nothing is copied then.
    """

    def __init__(self, upload: Callable[..., tuple[tuple[c_void_p, ...], DeviceArray]]) -> None:
        self._upload = upload
        self._size = -1
        self._key: tuple[Any, ...] = ()
        self._operands: tuple[c_void_p, ...] = ()
        self._held: DeviceArray | None = None

    def of(
        self, make: Callable[..., tuple[NDArray[Any], ...]], size: int, *arrays: NDArray[Any]
    ) -> tuple[c_void_p, ...]:
        """Returns the addresses of make(size, *arrays), copied to the device."""
        key = (make, *arrays)
        if size != self._size or len(key) != len(self._key) or not all(map(is_, key, self._key)):
            self._operands, self._held = self._upload(*make(size, *arrays))
            self._size, self._key = size, key
        return self._operands


def _rows_argument(
    logits: Logits, count: int, rows: c_void_p | None = None, scratch: int = 0, *, selects: bool = False
) -> RowsArgument:
    """Returns the argument for a launch on `count` rows."""
    span = span_of(count, logits.size)
    return RowsArgument(logits.address, rows, scratch, logits.size, span, selects)


def _filters_of(draws: Draws) -> tuple[NDArray[Any], ...]:
    return (draws.temperature, draws.min_p, draws.top_k, draws.top_p)


def _some(draws: Draws, rows: NDArray[np.bool_]) -> bool:
    """Returns True if any of these rows draws by chance."""
    return bool((rows & (draws.temperature != 0)).any())


def _as_they_are(_size: int, *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return arrays


def _places(size: int, rows: Int64s, tokens: Int64s, *more: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return (rows * size + tokens, *more)


def _additions(size: int, rows: Int64s, tokens: Int64s, *values: Floats) -> tuple[NDArray[Any], ...]:
    """Sorted places, with the order in which they were if that is another one, and the values."""
    places = rows * size + tokens
    if (places[1:] >= places[:-1]).all():
        return (places, *values)
    order = np.argsort(places, kind="stable")
    return (places[order], order, *values)
