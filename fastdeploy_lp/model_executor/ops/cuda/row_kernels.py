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
from fastdeploy_lp.model_executor.ops.row_ops import Bits, Cut, Draws, Floats, Int64s, Penalties, TokenLists

# Threads of a block that works on a row. A multiprocessor has room for 1,024 of them, and a large GPU has more than
# 100 of those: with more rows, one computes two at a time. Not measured on a GPU yet.
FEW_ROWS = 128
MOST_THREADS, SHARED_THREADS = 1024, 512
# Of blocks whose threads each change one logit.
ENTRY_THREADS = 256
# A row is divided among blocks that change this many of its logits each.
PART = 8192
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

    threads: of a block that works on a row, a multiple of 32; None chooses by the number of rows.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self._device = device
        self._threads = threads
        self._last = _LastOperands(self._upload)

    def draw(self, logits: Logits, draws: Draws, tokens: int) -> None:
        """Writes the tokens, int64 [rows]."""
        operands, _held = self._upload(draws.temperature, draws.min_p, draws.top_k, draws.top_p, draws.uniform)
        self._of_rows("fdlp_draw_rows", logits, *operands, c_void_p(tokens))

    def filter(self, logits: Logits, draws: Draws, filtered: int) -> None:
        """Writes logits of the same shape."""
        operands, _held = self._upload(draws.temperature, draws.min_p, draws.top_k, draws.top_p)
        self._of_rows("fdlp_filter_rows", logits, *operands, c_void_p(filtered))

    def logprobs(
        self, logits: Logits, chosen: int, count: int, *, normalize: bool, values: int, tokens: int, ranks: int
    ) -> None:
        """Writes values float32 and tokens int64 [rows, 1 + count], and ranks int64 [rows], of `chosen` int64 [rows].

        Raises ValueError if there are not as many tokens to list.
        """
        if not 0 <= count <= min(MOST_LISTED, logits.size):
            raise ValueError(f"count: {count} is not allowed; 0 to {min(MOST_LISTED, logits.size)} are")
        numbers = (c_int32(count), c_int32(normalize))
        self._of_rows("fdlp_row_logprobs", logits, c_void_p(chosen), *numbers, *map(c_void_p, (values, tokens, ranks)))

    def compare(
        self, logits: Logits, before: Int64s, *, log_sums: int, entropies: int, moved: int, most_likely: int
    ) -> None:
        """Writes log sums, entropies and distances, float64 [rows], and most likely tokens, int64 [rows]."""
        scratch = self._device.empty(logits.rows * logits.size * 4)
        inverses = self._device.empty(logits.rows * 8)
        weights, factors = c_void_p(scratch.address), c_void_p(inverses.address)
        self._of_rows("fdlp_weigh_rows", logits, weights, factors, *map(c_void_p, (log_sums, entropies, most_likely)))
        weighed = Logits(scratch.address, logits.rows, logits.size)
        (earlier,), _held = self._upload(before)
        self._of_rows("fdlp_move_rows", weighed, factors, earlier, c_void_p(moved))

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
        operands, _held = self._upload(lists.rows, lists.offsets, lists.tokens)
        kept = self._device.empty(len(lists.tokens) * 4)
        self._of_lists("fdlp_allow_only", logits, len(lists.rows), *operands, c_void_p(kept.address))

    def mask(self, logits: Logits, rows: Int64s, bits: Bits) -> None:
        """Sets tokens without their bit to -inf in place."""
        # Alone: packed with the rows, they would be copied once more.
        words = self._device.upload(bits)
        (of_rows,), _held = self._upload(rows)
        self._of_parts("fdlp_mask", logits, len(rows), of_rows, c_void_p(words.address))

    def force(self, logits: Logits, rows: Int64s, tokens: Int64s) -> None:
        """Sets one token of each row to 0 and the others to -inf in place."""
        self._of_parts("fdlp_force", logits, len(rows), *self._last.of(_as_they_are, logits.size, rows, tokens))

    def cut(self, logits: Logits, cut: Cut, rows: Int64s, values: Floats) -> None:
        """Cuts rows in place."""
        operands = self._last.of(_as_they_are, logits.size, rows, values)
        self._of_lists("fdlp_cut_rows", logits, len(rows), c_int32(cut), *operands)

    def copy_rows(self, logits: Logits, rows: Int64s, into: int) -> None:
        """Copies rows to consecutive ones at an address."""
        operands, _held = self._upload(rows)
        self._of_parts("fdlp_copy_rows", logits, len(rows), *operands, c_void_p(into))

    def _of_rows(self, kernel: str, logits: Logits, *arguments: Any) -> None:
        """Launches a block for each row."""
        self._of_lists(kernel, logits, logits.rows, *arguments)

    def _of_lists(self, kernel: str, logits: Logits, lists: int, *arguments: Any) -> None:
        """Launches a block for each of some rows."""
        threads = self._threads or (MOST_THREADS if lists <= FEW_ROWS else SHARED_THREADS)
        self._launch(kernel, (lists, 1), threads, c_void_p(logits.address), c_int32(logits.size), *arguments)

    def _of_parts(self, kernel: str, logits: Logits, rows: int, *arguments: Any) -> None:
        """Launches a block for each part of some rows."""
        grid = (rows, -(-logits.size // PART))
        threads = self._threads or MOST_THREADS
        self._launch(kernel, grid, threads, c_void_p(logits.address), c_int32(logits.size), *arguments)

    def _of_entries(self, kernel: str, logits: Logits, entries: int, *arguments: Any) -> None:
        """Launches a thread for each entry."""
        grid = (-(-entries // ENTRY_THREADS), 1)
        self._launch(kernel, grid, ENTRY_THREADS, c_void_p(logits.address), c_int64(entries), *arguments)

    def _launch(self, kernel: str, grid: tuple[int, int], threads: int, *arguments: Any) -> None:
        if all(grid):
            self._device.launch(kernel, grid, threads, *arguments)

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
