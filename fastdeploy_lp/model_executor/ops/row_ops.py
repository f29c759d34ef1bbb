"""Interface of operations on rows of logits: edits in place, draws, and statistics."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
Bits = NDArray[np.int32]


@dataclass(frozen=True)
class Draws:
    """Sampling parameters of each row; every field is an array [rows].

    temperature: float32; 0 takes the most likely token, the first of equals, and the other fields mean nothing then.
    min_p: float32; tokens less likely than this share of the most likely one are left out; 0 for none.
    top_k: int64; keep this many most likely tokens, of equals the first; 0 keeps all.
    top_p: float32; keep the fewest most likely tokens that reach this share together, of equals the first; 1 keeps all.
    uniform: float32 in (0, 1]; where in the kept tokens, cumulated in the order of their ids, the drawn one is.
    """

    temperature: Floats
    min_p: Floats
    top_k: Int64s
    top_p: Floats
    uniform: Floats

    def of(self, rows: Int64s) -> Draws:
        """Returns the parameters of some rows."""
        return Draws(self.temperature[rows], self.min_p[rows], self.top_k[rows], self.top_p[rows], self.uniform[rows])


@dataclass(frozen=True)
class TokenLists:
    """Distinct tokens of some rows: the tokens of row `rows[i]` are `tokens[offsets[i]:offsets[i + 1]]`; all int64."""

    rows: Int64s
    offsets: Int64s
    tokens: Int64s

    @classmethod
    def of(cls, rows: Sequence[int], lists: Sequence[Int64s]) -> TokenLists:
        """The lists one after the other."""
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(each) for each in lists], out=offsets[1:])
        return cls(np.array(rows, np.int64), offsets, np.concatenate(lists))

    @property
    def row_of_token(self) -> Int64s:
        """The row of each entry of `tokens`."""
        return np.repeat(self.rows, np.diff(self.offsets))


@dataclass(frozen=True)
class Penalties:
    """Penalties on the tokens of a sequence: `counts` (int64) says how often each of `lists.tokens` was generated.

    repetition, presence, frequency: float32 [lists]. A logit above 0 is divided by `repetition` and others multiplied
    with it; then `frequency` is taken off for each time, and `presence` once if there was one.
    """

    lists: TokenLists
    counts: Int64s
    repetition: Floats
    presence: Floats
    frequency: Floats

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        counted: Sequence[tuple[Int64s, Int64s]],
        rates: Sequence[tuple[float, float, float]],
    ) -> Penalties:
        """For each row its distinct tokens with their counts, and its repetition, presence and frequency penalty."""
        repetition, presence, frequency = np.array(rates, np.float32).T.copy()
        lists = TokenLists.of(rows, [tokens for tokens, _ in counted])
        return cls(lists, np.concatenate([counts for _, counts in counted]), repetition, presence, frequency)


@dataclass(frozen=True)
class RowLogprobs:
    """For each row the chosen token first, then the most likely ones in descending order.

    values: float32 [rows, 1 + count]. tokens: int64 [rows, 1 + count]. ranks: int64 [rows], 1 for a most likely token.
    """

    values: Tensor
    tokens: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class RowDistributions:
    """The distribution of each row, and its distance from another row's.

    log_sums, entropies (in nats), moved: float64 [rows]. most_likely: int64 [rows], of equal tokens the first.
    """

    log_sums: Tensor
    entropies: Tensor
    moved: Tensor
    most_likely: Tensor


class Cut(enum.IntEnum):
    """Rule that sets tokens to -inf, from the row's own distribution at temperature 1 and one value.

    MIN_P: tokens less likely than this share of the most likely one, as in a draw.
    EPSILON: tokens less likely than the value; the most likely ones stay.
    ETA: tokens less likely than min(value, sqrt(value) * exp(-entropy)); the most likely ones stay.
    TOP_N_SIGMA: tokens whose logit is more than the value times the standard deviation of the row's finite logits below
        the greatest.
    TYPICAL: tokens whose surprise is furthest from the entropy, once the others' probabilities reach the value.
    EXCLUDE_TOP: all tokens at least as likely as the value, except the last one of the ranking.
    """

    # Same order as in the compiled operators.
    MIN_P = 0
    EPSILON = 1
    ETA = 2
    TOP_N_SIGMA = 3
    TYPICAL = 4
    EXCLUDE_TOP = 5


class RowEdits(ABC):
    """Edits in place of logits, a tensor [rows, vocab_size]; each row's result depends on this row alone.

    None of them reads device data. The cost depends on the rows and tokens named, except where a whole row is cut.
    Callers do not change an array after they have passed it: an edit with the same arrays reuses its operands.
    """

    @abstractmethod
    def penalize(self, logits: Tensor, penalties: Penalties) -> None:
        """Apply penalties in place."""

    @abstractmethod
    def ban(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """Set each (row, token) to -inf in place."""

    @abstractmethod
    def allow_only(self, logits: Tensor, lists: TokenLists) -> None:
        """Set every token of the listed rows but the listed ones to -inf in place."""

    @abstractmethod
    def mask(self, logits: Tensor, rows: Int64s, bits: Bits) -> None:
        """Set every token t of row `rows[i]` to -inf in place unless bit t % 32 of `bits[i, t // 32]` is set.

        bits: int32 [rows, ceil(vocab_size / 32)], contiguous; bits beyond the vocabulary mean nothing.
        """

    @abstractmethod
    def force(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """Set `tokens[i]` of row `rows[i]` to 0 and the row's other tokens to -inf, in place; rows are distinct."""

    @abstractmethod
    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats | Tensor) -> None:
        """Add `values[i]` to the logit of token `tokens[i]` in row `rows[i]`, all [n]; repeated places add up."""

    @abstractmethod
    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """Add `values[i]` times its own magnitude to each logit that is not -inf, all [n], the places distinct."""

    @abstractmethod
    def values_at(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> Floats | Tensor:
        """Return a copy of the logits [n] at these places, for `add`: numpy in host memory, else a tensor."""

    @abstractmethod
    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """Cut row `rows[i]` by `values[i]`, both [n], the rows distinct; a row with a NaN or without a finite logit
        stays as it is. Implementations agree except for logits within rounding (1e-13) of a bound."""


class RowOps(RowEdits):
    """Edits, draws and statistics of logits, a float32 tensor [rows, vocab_size]; rows do not affect each other.

    None of them reads device data. The result of a draw is the same, bit for bit, with every implementation: weights
    are rounded to whole numbers, so that sums do not depend on their order.
    """

    @classmethod
    def open(cls) -> RowOps | None:
        """Returns operators for this process; None, with the reason in the log, if they are unavailable here."""
        return cls()

    @abstractmethod
    def draw(self, logits: Tensor, draws: Draws, *, guard: bool) -> Tensor:
        """A token for each row, int64 [rows]; with `guard`, -1 for a row with a NaN or without a finite maximum."""

    def draw_to_host(self, logits: Tensor, draws: Draws, *, guard: bool) -> Int64s:
        """The same tokens in host memory; waits for the device."""
        tokens: Int64s = self.draw(logits, draws, guard=guard).numpy().astype(np.int64)
        return tokens

    @abstractmethod
    def filtered(self, logits: Tensor, draws: Draws) -> Tensor:
        """New logits as a draw uses them: divided by the temperature, -inf where a filter leaves a token out.

        Rows of temperature 0 stay as they are.
        """

    @abstractmethod
    def logprobs(self, logits: Tensor, chosen: Tensor, count: int, *, normalize: bool) -> RowLogprobs:
        """Log probabilities of `chosen` (int64 [rows]) and of the `count` (at most MAX_LOGPROBS) most likely tokens.

        normalize: False returns the logits themselves. Results of rows with a chosen -1 are meaningless, and so are the
        ids of tokens with -inf.
        """

    @abstractmethod
    def copy_rows(self, logits: Tensor, rows: Int64s, into: Tensor, at: int) -> None:
        """Copy these rows to `into`, contiguous float32 [*, vocab_size], from its row `at` on."""

    @abstractmethod
    def compare(self, logits: Tensor, before: Int64s) -> RowDistributions:
        """The rows' distributions, and the total variation distance of row r from row `before[r]`, 0 if that is -1.

        Of a row with a NaN or without a finite maximum, and of one compared with it, the numbers mean nothing.
        """
