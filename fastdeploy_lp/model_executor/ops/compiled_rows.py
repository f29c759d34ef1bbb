"""Operations on rows of logits with the compiled operators, for tensors in host memory."""

from __future__ import annotations

import ctypes

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.addresses import addresses, is_plain
from fastdeploy_lp.model_executor.ops.library import compiled_ops
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import (
    Bits,
    Draws,
    Int64s,
    Penalties,
    RowDistributions,
    RowLogprobs,
    RowOps,
    TokenLists,
)

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
# Arguments of the functions of csrc/row_*.cpp.
_DRAW_ARGUMENTS = [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 4]
SIGNATURES = {
    "fdlp_draw_rows": [*_DRAW_ARGUMENTS, _POINTER, _POINTER],
    "fdlp_filter_rows": [*_DRAW_ARGUMENTS, _POINTER],
    "fdlp_row_logprobs": [
        *[_POINTER, _INTEGER, _INTEGER, _POINTER, _INTEGER, ctypes.c_int],
        *[_POINTER] * 3,
    ],
    "fdlp_compare_rows": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 7],
    "fdlp_penalize": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 7],
    "fdlp_ban": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER],
    "fdlp_allow_only": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 3],
    "fdlp_mask": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER],
}


class CompiledRowOps(RowOps):
    """Each core processes separate rows; a row is read once or twice and never sorted.

    Logits that are not a contiguous float32 tensor are converted, or left to Paddle where they change in place.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._paddle = PaddleRowOps()
        # The places of the last ban with their addresses: computing these takes the same time as the ban itself, and a
        # ban often repeats.
        self._places: tuple[Int64s, Int64s] | None = None
        self._place_addresses: tuple[int, ...] = ()
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None

    def draw(self, logits: Tensor, draws: Draws, *, guard: bool) -> Tensor:  # noqa: ARG002 - always on
        """As the interface says; the guard costs nothing and is always on."""
        logits = _plain(logits)
        rows, size = logits.shape
        tokens = paddle.empty([rows], "int64")
        arguments = _draw_arguments(draws)
        self._library.fdlp_draw_rows(
            logits.data_ptr(), rows, size, *arguments, *addresses(draws.uniform), tokens.data_ptr()
        )
        return tokens

    def filtered(self, logits: Tensor, draws: Draws) -> Tensor:
        """As the interface says."""
        logits = _plain(logits)
        rows, size = logits.shape
        result = paddle.empty_like(logits)
        self._library.fdlp_filter_rows(logits.data_ptr(), rows, size, *_draw_arguments(draws), result.data_ptr())
        return result

    def logprobs(self, logits: Tensor, chosen: Tensor, count: int, *, normalize: bool) -> RowLogprobs:
        """As the interface says; of equal tokens the first ones are listed."""
        logits = _plain(logits)
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
        logits = _plain(logits)
        size = logits.shape[-1] * logits.element_size()
        source, target = logits.data_ptr(), into.data_ptr() + at * size
        for place, row in enumerate(rows.tolist()):
            ctypes.memmove(target + place * size, source + row * size, size)

    def compare(self, logits: Tensor, before: Int64s) -> RowDistributions:
        """As the interface says."""
        logits = _plain(logits)
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
            self._paddle.penalize(logits, penalties)
            return
        arrays = (penalties.counts, penalties.repetition, penalties.presence, penalties.frequency)
        self._library.fdlp_penalize(
            logits.data_ptr(), logits.shape[-1], *_list_arguments(penalties.lists), *addresses(*arrays)
        )

    def ban(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """As the interface says."""
        if not is_plain(logits):
            self._paddle.ban(logits, rows, tokens)
            return
        if self._places is None or self._places[0] is not rows or self._places[1] is not tokens:
            self._places, self._place_addresses = (rows, tokens), addresses(rows, tokens)
        self._library.fdlp_ban(logits.data_ptr(), logits.shape[-1], len(rows), *self._place_addresses)

    def allow_only(self, logits: Tensor, lists: TokenLists) -> None:
        """As the interface says."""
        if not is_plain(logits):
            self._paddle.allow_only(logits, lists)
            return
        self._library.fdlp_allow_only(logits.data_ptr(), logits.shape[-1], *_list_arguments(lists))

    def mask(self, logits: Tensor, rows: Int64s, bits: Bits) -> None:
        """As the interface says."""
        if not is_plain(logits):
            self._paddle.mask(logits, rows, bits)
            return
        self._library.fdlp_mask(logits.data_ptr(), logits.shape[-1], len(rows), *addresses(rows, bits))


def _plain(logits: Tensor) -> Tensor:
    return logits if is_plain(logits) else logits.astype("float32").contiguous()


def _draw_arguments(draws: Draws) -> tuple[int, ...]:
    return addresses(draws.temperature, draws.min_p, draws.top_k, draws.top_p)


def _list_arguments(lists: TokenLists) -> tuple[int, ...]:
    return (len(lists.rows), *addresses(lists.rows, lists.offsets, lists.tokens))


def row_ops() -> RowOps:
    """The fastest implementation for the platform that serves."""
    library = compiled_ops()
    return PaddleRowOps() if library is None else CompiledRowOps(library)
