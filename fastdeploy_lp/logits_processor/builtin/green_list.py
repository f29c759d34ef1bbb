"""Green lists of a watermark, and the score of a text. Imports only numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.builtin.keyed_hash import context_mixers

DEFAULT_GAMMA, DEFAULT_DELTA, DEFAULT_CONTEXT_WIDTH = 0.25, 2.0, 1


@dataclass(frozen=True)
class GreenList:
    """Draws a share `gamma` of the vocabulary anew for every context, from `key` and the context's last tokens.

    context_width: number of tokens that determine the list. A token is green if its hash, mixed with the context's, is
    below gamma · 2^32; the same key, gamma and width produce the same lists on every machine.
    """

    key: int
    gamma: float = DEFAULT_GAMMA
    context_width: int = DEFAULT_CONTEXT_WIDTH

    def mixers(self, context: Sequence[int]) -> tuple[int, int]:
        """Returns two 32-bit numbers, the second one odd, from the key and the last `context_width` tokens."""
        return context_mixers(self.key, context[-self.context_width :])

    @cached_property
    def bound(self) -> int:
        """Exclusive upper bound of green tokens' mixed hashes."""
        return round(self.gamma * 2**32)

    def green(
        self, mixers: tuple[int, int], hashes: NDArray[np.uint32], mixed: NDArray[np.uint32] | None = None
    ) -> NDArray[np.bool_]:
        """Returns a mask, bool [n], of the hashes [n] whose tokens are green after the context of `mixers`.

        mixed: work buffer [n].
        """
        flip, factor = mixers
        mixed = np.bitwise_xor(hashes, np.uint32(flip), out=mixed)
        np.multiply(mixed, np.uint32(factor), out=mixed)
        return mixed < np.uint32(self.bound)


def token_hashes(vocab_size: int) -> NDArray[np.uint32]:
    """Returns a hash of every token id [vocab_size]; hashes do not depend on the context."""
    hashes = np.arange(vocab_size, dtype=np.uint32)
    for factor, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        hashes ^= hashes >> np.uint32(16)
        hashes *= np.uint32(factor)
        hashes ^= hashes >> np.uint32(shift)
    return hashes


@dataclass(frozen=True)
class WatermarkScore:
    """Number of green tokens among `scored` ones; the expected share in text without the watermark is `gamma`."""

    green: int
    scored: int
    gamma: float

    @property
    def z(self) -> float:
        """Standard deviations above the expected number; 0 if nothing was scored."""
        if not self.scored:
            return 0.0
        return (self.green - self.gamma * self.scored) / math.sqrt(self.scored * self.gamma * (1 - self.gamma))

    @property
    def p_value(self) -> float:
        """Probability of at least so many green tokens in text without the watermark."""
        return 0.5 * math.erfc(self.z / math.sqrt(2))


def score(tokens: Sequence[int], greens: GreenList) -> WatermarkScore:
    """Scores the tokens that have a full context before them; each pair of context and token counts once.

    Otherwise a repeated passage would count its luck several times.
    """
    width = greens.context_width
    windows = {tuple(tokens[at - width : at + 1]) for at in range(width, len(tokens))}
    hashes = token_hashes(max(tokens, default=0) + 1)
    green = sum(bool(greens.green(greens.mixers(window[:-1]), hashes[[window[-1]]])[0]) for window in windows)
    return WatermarkScore(green, len(windows), greens.gamma)
