"""Operations on rows of logits with the compiled operators, for tensors in host memory."""

from __future__ import annotations

import ctypes

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.library import compiled_ops
from fastdeploy_lp.model_executor.ops.paddle_edits import LastOperands
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import (
    Bits,
    Cut,
    Draws,
    Floats,
    Int64s,
    Penalties,
    RowDistributions,
    RowLogprobs,
    TokenLists,
)
from fastdeploy_lp.model_executor.ops.row_signatures import addresses, declare_row_functions
from fastdeploy_lp.model_executor.ops.structs import AdditionsStruct

_FLOAT32 = paddle.float32


class CompiledRowOps(PaddleRowOps):
    """Each core processes separate rows; a row is read two or three times and never sorted.

    Logits that are not a contiguous float32 tensor are converted, or left to Paddle where they change in place.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._library = library
        self._addresses: LastOperands[int] = LastOperands(addresses)
        self._draw_addresses: LastOperands[int] = LastOperands(addresses)
        self._additions = _LastAdditions()
        declare_row_functions(library)

    @classmethod
    def open(cls) -> CompiledRowOps | None:
        """Returns them with this process's library; None where there is none."""
        library = compiled_ops()
        return None if library is None else cls(library)

    def draw(self, logits: Tensor, draws: Draws, *, guard: bool) -> Tensor:  # noqa: ARG002 - always on
        """As the interface says; the guard costs nothing and is always on."""
        tokens = paddle.empty([len(draws.uniform)], "int64")
        self._draw(logits, draws, tokens.data_ptr())
        return tokens

    def draw_to_host(self, logits: Tensor, draws: Draws, *, guard: bool) -> Int64s:  # noqa: ARG002 - always on
        """As the interface says, without a tensor: to make and read it takes 3 % of a step of one row."""
        tokens = np.empty(len(draws.uniform), np.int64)
        self._draw(logits, draws, tokens.ctypes.data)
        return tokens

    def _draw(self, logits: Tensor, draws: Draws, to: int) -> None:
        logits = plain(logits)
        arguments = (*self._arguments_of(draws), *addresses(draws.uniform))
        self._library.fdlp_draw_rows(logits.data_ptr(), len(draws.uniform), logits.shape[-1], *arguments, to)

    def filtered(self, logits: Tensor, draws: Draws) -> Tensor:
        """As the interface says."""
        logits = plain(logits)
        rows, size = logits.shape
        result = paddle.empty_like(logits)
        self._library.fdlp_filter_rows(logits.data_ptr(), rows, size, *self._arguments_of(draws), result.data_ptr())
        return result

    def logprobs(self, logits: Tensor, chosen: Tensor, count: int, *, normalize: bool) -> RowLogprobs:
        """As the interface says; of equal tokens the first ones are listed."""
        logits = plain(logits)
        rows, size = logits.shape
        count = min(count, size)
        values = paddle.empty([rows, count + 1], "float32")
        tokens = paddle.empty([rows, count + 1], "int64")
        ranks = paddle.empty([rows], "int64")
        self._library.fdlp_row_logprobs(
            *(logits.data_ptr(), rows, size, chosen.data_ptr(), count, int(normalize)),
            *(each.data_ptr() for each in (values, tokens, ranks)),
        )
        return RowLogprobs(values, tokens, ranks)

    def copy_rows(self, logits: Tensor, rows: Int64s, into: Tensor, at: int) -> None:
        """As the interface says."""
        logits = plain(logits)
        size = logits.shape[-1] * logits.element_size()
        source, target = logits.data_ptr(), into.data_ptr() + at * size
        for place, row in enumerate(rows.tolist()):
            ctypes.memmove(target + place * size, source + row * size, size)

    def compare(self, logits: Tensor, before: Int64s) -> RowDistributions:
        """As the interface says."""
        logits = plain(logits)
        rows, size = logits.shape
        scratch = paddle.empty([rows, size], "float32")
        inverses, log_sums, entropies, moved = (paddle.empty([rows], "float64") for _ in range(4))
        most_likely = paddle.empty([rows], "int64")
        self._library.fdlp_compare_rows(
            *(logits.data_ptr(), rows, size, *addresses(before)),
            *(each.data_ptr() for each in (scratch, inverses, log_sums, entropies, moved, most_likely)),
        )
        return RowDistributions(log_sums, entropies, moved, most_likely)

    def penalize(self, logits: Tensor, penalties: Penalties) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().penalize(logits, penalties)
            return
        arrays = (penalties.counts, penalties.repetition, penalties.presence, penalties.frequency)
        self._library.fdlp_penalize(
            logits.data_ptr(), logits.shape[-1], *_list_arguments(penalties.lists), *addresses(*arrays)
        )

    def ban(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().ban(logits, rows, tokens)
            return
        self._library.fdlp_ban(logits.data_ptr(), logits.shape[-1], len(rows), *self._addresses.of(rows, tokens))

    def allow_only(self, logits: Tensor, lists: TokenLists) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().allow_only(logits, lists)
            return
        self._library.fdlp_allow_only(logits.data_ptr(), logits.shape[-1], *_list_arguments(lists))

    def mask(self, logits: Tensor, rows: Int64s, bits: Bits) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().mask(logits, rows, bits)
            return
        self._library.fdlp_mask(logits.data_ptr(), logits.shape[-1], len(rows), *addresses(rows, bits))

    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats | Tensor) -> None:
        """As the interface says."""
        if isinstance(values, Tensor) or not is_plain(logits):
            super().add(logits, rows, tokens, values)
            return
        self._library.fdlp_add(logits.data_ptr(), self._additions.of(rows, tokens, values, logits.shape[-1]))

    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().add_scaled(logits, rows, tokens, values)
            return
        self._library.fdlp_add_scaled(logits.data_ptr(), logits.shape[-1], len(rows), *addresses(rows, tokens, values))

    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().cut(logits, cut, rows, values)
            return
        operands = self._addresses.of(rows, values)
        self._library.fdlp_cut_rows(logits.data_ptr(), logits.shape[-1], cut, len(rows), *operands)

    def _arguments_of(self, draws: Draws) -> tuple[int, ...]:
        return self._draw_addresses.of(draws.temperature, draws.min_p, draws.top_k, draws.top_p)


class _LastAdditions:
    """`Additions` of the last call of `add`, kept for the next one with the same arrays and vocabulary.

    One address instead of five arguments: `ctypes` converts an argument in 60 ns, the time of 60 additions.
    """

    def __init__(self) -> None:
        self._rows = self._tokens = self._places = np.empty(0, np.int64)
        self._values = np.empty(0, np.float32)
        self._size = 0
        self._struct = AdditionsStruct()
        self._address = ctypes.addressof(self._struct)

    def of(self, rows: Int64s, tokens: Int64s, values: Floats, size: int) -> int:
        """Returns the address of the structure, which is valid until the next call."""
        if not (rows is self._rows and tokens is self._tokens and values is self._values and size == self._size):
            self._rows, self._tokens, self._values, self._size = rows, tokens, values, size
            self._places = rows * size + tokens
            self._struct.count = len(rows)
            self._struct.places, self._struct.values = addresses(self._places, values)
        return self._address


def is_plain(logits: Tensor) -> bool:
    """Returns True if the tensor suits the operators on rows: contiguous float32."""
    dtype = logits.dtype
    # Paddle's comparison takes longer than some of those operators; its types are single objects.
    if dtype is not _FLOAT32 and dtype != _FLOAT32:
        return False
    contiguous: bool = logits.is_contiguous()
    return contiguous


def plain(logits: Tensor) -> Tensor:
    """Returns the logits as the operators on rows take them, converted if necessary."""
    return logits if is_plain(logits) else logits.astype("float32").contiguous()


def _list_arguments(lists: TokenLists) -> tuple[int, ...]:
    return (len(lists.rows), *addresses(lists.rows, lists.offsets, lists.tokens))
