"""Draws of processors that choose tokens: by pseudo-random words, or below a bound of surprise."""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.compiled_rows import is_plain
from fastdeploy_lp.model_executor.ops.library import compiled_ops
from fastdeploy_lp.model_executor.ops.paddle_edits import LOWEST, ONE, can_be_drawn_from, cumsum
from fastdeploy_lp.model_executor.ops.row_ops import Floats, Int64s
from fastdeploy_lp.model_executor.ops.row_signatures import addresses
from fastdeploy_lp.platforms import to_device

HEAD_DEPTH = 7.0
"""Tokens less likely than e^-7 of the most likely one are outside a tournament: drawn as if there were none."""

WORD = 2.0**32


@dataclass(frozen=True)
class KeyedRows:
    """Rules of the rows' draws; arrays [rows].

    flips, factors: uint32, two numbers that determine a word of 32 bits for each token; a factor of 0 draws the row by
    its uniform number. layers: int64, 0 for the exponential minimum, else rounds of the tournament, at most 32.
    """

    flips: NDArray[np.uint32]
    factors: NDArray[np.uint32]
    layers: Int64s


class Choices(ABC):
    """Draws from logits [rows, vocab_size] float32, divided by the temperature, -inf for what is ruled out.

    A row's token depends on this row alone; it is -1 for a row with a NaN or without a finite maximum. Results are in
    host memory if they are arrays.
    """

    @abstractmethod
    def keyed(self, logits: Tensor, keyed: KeyedRows, uniforms: Floats) -> Tensor | Int64s:
        """Returns a token for each row, int64 [rows].

        The exponential minimum takes the token with the greatest logit - ln(-ln(u)), u from its word. A tournament of m
        rounds multiplies a token's probability with 1 + g - mean(g) in each, g a bit of its word, and draws from the
        result; a share of the rows goes to unlikely tokens without a tournament (`HEAD_DEPTH`).
        """

    @abstractmethod
    def below_surprise(
        self, logits: Tensor, bits: NDArray[np.float64], uniforms: Floats
    ) -> tuple[Tensor, Tensor] | tuple[Int64s, NDArray[np.float64]]:
        """Returns a token for each row, int64 [rows], and its surprise -log2(p) in the row, float64 [rows].

        The token is drawn from those with a surprise of at most `bits` [rows], or is the most likely one.
        """


class PaddleChoices(Choices):
    """The reference, with Paddle's own operators on any device."""

    def keyed(self, logits: Tensor, keyed: KeyedRows, uniforms: Floats) -> Tensor:
        """As the interface says."""
        below, usable = _below_the_greatest(logits)
        weights = _weights(below)
        uniform = _column(uniforms)
        plain, layers = keyed.factors == 0, keyed.layers
        tokens = _drawn(weights, uniform)
        if not plain.all():
            words = _words(logits.shape[-1], keyed)
            marked = _column((~plain).astype(np.float64)).squeeze(1) > 0
            first = _column(layers.astype(np.float64)).squeeze(1) == 0
            by_tournament = _by_tournament(_head(logits), weights, words, layers, uniform)
            own = paddle.where(first, _by_gumbel(below, words), by_tournament)
            tokens = paddle.where(marked, own, tokens)
        return paddle.where(usable, tokens, paddle.full_like(tokens, -1))

    def below_surprise(self, logits: Tensor, bits: NDArray[np.float64], uniforms: Floats) -> tuple[Tensor, Tensor]:
        """As the interface says."""
        below, usable = _below_the_greatest(logits)
        weights = _weights(below)
        total = weights.sum(axis=-1, keepdim=True)
        least = (total * to_device(np.exp2(-bits)).unsqueeze(1)).clip(1.0, ONE)
        tokens = _drawn(paddle.where(weights >= least, weights, paddle.zeros_like(weights)), _column(uniforms))
        own = paddle.take_along_axis(weights, tokens.clip(0, logits.shape[-1] - 1).unsqueeze(1), axis=1)
        surprises = (paddle.log(total / own.clip(min=1.0)) / math.log(2)).squeeze(1)
        nothing = paddle.zeros_like(surprises)
        return paddle.where(usable, tokens, paddle.full_like(tokens, -1)), paddle.where(usable, surprises, nothing)


def _below_the_greatest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each logit less the row's greatest, float64, and True for each row that can be drawn from."""
    wide = logits.astype("float64")
    highest = wide.max(axis=-1, keepdim=True)
    return wide - highest, can_be_drawn_from(highest).squeeze(1)


def _weights(below: Tensor) -> Tensor:
    return paddle.floor(paddle.exp(below.clip(min=LOWEST)) * ONE)


def _drawn(weights: Tensor, uniform: Tensor) -> Tensor:
    """Returns the first token, by id, at which the weights reach `uniform` [rows, 1] of their sum."""
    cumulated = cumsum(weights)
    return (cumulated < uniform * cumulated[:, -1:]).astype("int64").sum(axis=-1)


def _words(vocab_size: int, keyed: KeyedRows) -> Tensor:
    """Returns `token_words` of the whole vocabulary, int64 [rows, vocab_size]."""
    mask = paddle.full([1], 0xFFFFFFFF, "int64")
    flips, factors = (to_device(each.astype(np.int64)).unsqueeze(1) for each in (keyed.flips, keyed.factors))
    tokens = paddle.arange(vocab_size, dtype="int64").unsqueeze(0)
    words = paddle.bitwise_and(paddle.bitwise_xor(tokens * 0x9E3779B1, flips), mask)
    words = paddle.bitwise_xor(words, words // 2**16)
    words = paddle.bitwise_and(words * 0x21F0AAAD, mask)
    words = paddle.bitwise_xor(words, words // 2**15)
    words = paddle.bitwise_and(words * factors, mask)
    return paddle.bitwise_xor(words, words // 2**15)


def _by_gumbel(below: Tensor, words: Tensor) -> Tensor:
    uniform = (words.astype("float64") + 0.5) / WORD
    return paddle.argmax(below - paddle.log(-paddle.log(uniform)), axis=-1)


def _head(logits: Tensor) -> Tensor:
    """Returns True for the tokens of a tournament."""
    return logits >= logits.max(axis=-1, keepdim=True) - HEAD_DEPTH


def _by_tournament(inside: Tensor, weights: Tensor, words: Tensor, layers: Int64s, uniform: Tensor) -> Tensor:
    nothing = paddle.zeros_like(weights)
    head, tail = paddle.where(inside, weights, nothing), paddle.where(inside, nothing, weights)
    mass = head.sum(axis=-1, keepdim=True)
    target = uniform * weights.sum(axis=-1, keepdim=True)
    shares = head / mass
    rounds = to_device(layers).unsqueeze(1)
    for layer in range(int(layers.max())):
        bits = (words // 2**layer % 2).astype("float64")
        after = shares * (1.0 + bits - (shares * bits).sum(axis=-1, keepdim=True))
        shares = paddle.where(rounds > layer, after, shares)
    of_head = _drawn(shares, target / mass)
    cumulated = cumsum(tail)
    of_tail = (cumulated < target - mass).astype("int64").sum(axis=-1)
    return paddle.where((target > mass).squeeze(1), of_tail, of_head)


def _column(values: NDArray[Any]) -> Tensor:
    return to_device(values.astype(np.float64)).unsqueeze(1)


_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
SIGNATURES = {
    "fdlp_choose_keyed": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 5],
    "fdlp_choose_below_surprise": [_POINTER, _INTEGER, _INTEGER, *[_POINTER] * 4],
}


class CompiledChoices(Choices):
    """Each core processes separate rows; most tokens cost a comparison or one exponential."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._reference = PaddleChoices()
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None

    def keyed(self, logits: Tensor, keyed: KeyedRows, uniforms: Floats) -> Tensor | Int64s:
        """As the interface says."""
        if not is_plain(logits):
            return self._reference.keyed(logits, keyed, uniforms)
        rows, size = logits.shape
        tokens = np.empty(rows, np.int64)
        arrays = (keyed.flips, keyed.factors, keyed.layers, np.ascontiguousarray(uniforms), tokens)
        self._library.fdlp_choose_keyed(logits.data_ptr(), rows, size, *addresses(*arrays))
        return tokens

    def below_surprise(
        self, logits: Tensor, bits: NDArray[np.float64], uniforms: Floats
    ) -> tuple[Tensor, Tensor] | tuple[Int64s, NDArray[np.float64]]:
        """As the interface says."""
        if not is_plain(logits):
            return self._reference.below_surprise(logits, bits, uniforms)
        rows, size = logits.shape
        tokens, surprises = np.empty(rows, np.int64), np.empty(rows, np.float64)
        arrays = (bits, np.ascontiguousarray(uniforms), tokens, surprises)
        self._library.fdlp_choose_below_surprise(logits.data_ptr(), rows, size, *addresses(*arrays))
        return tokens, surprises


def choices() -> Choices:
    """Returns the fastest implementation for the platform that serves."""
    library = compiled_ops()
    return PaddleChoices() if library is None else CompiledChoices(library)
