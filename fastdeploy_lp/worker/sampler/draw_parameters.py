"""The parameters by which the next tokens are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.sequence_state.uniform import mixed_seeds, uniform_at
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Floats, Int64s


@dataclass(frozen=True)
class RequestParameters:
    """The parameters of the requests in some slots [n], which do not change from token to token; arrays [n].

    seeds: as `uniform_at` takes them. offsets: number of the first token's draw.
    """

    temperature: Floats
    min_p: Floats
    top_k: Int64s
    top_p: Floats
    seeds: NDArray[np.uint64]
    offsets: Int64s
    all_greedy: bool

    @classmethod
    def of(cls, share_inputs: Mapping[str, Any], slots: Int64s) -> RequestParameters:
        """Gathers them."""
        temperature: Floats = share_inputs["temperature_cpu"][slots, 0]
        return cls(
            temperature=temperature,
            min_p=share_inputs["min_p_cpu"][slots, 0],
            top_k=share_inputs["top_k_cpu"][slots, 0],
            top_p=share_inputs["top_p_cpu"][slots, 0],
            seeds=mixed_seeds(share_inputs["seed"][slots, 0]),
            offsets=share_inputs["draw_offset"][slots, 0],
            all_greedy=not temperature.any(),
        )

    def draws(self, num_tokens: Int64s) -> Draws:
        """Returns the draws of the tokens that follow `num_tokens` [n] output tokens."""
        return self.draws_by(self.temperature if self.all_greedy else self.uniforms(num_tokens))

    def draws_by(self, uniform: Floats) -> Draws:
        """Returns draws by these numbers [n], which are unused if all requests take the most likely token."""
        return Draws(self.temperature, self.min_p, self.top_k, self.top_p, uniform)

    def uniforms(self, num_tokens: Int64s) -> Floats:
        """Returns the numbers [..., n] that draw the tokens after `num_tokens` [..., n] output tokens."""
        return uniform_at(self.seeds, (self.offsets + num_tokens).astype(np.uint64))


# Tokens whose numbers are computed together: for few rows, one token's take as long.
NUMBERS_AHEAD = 32


class DrawParameters:
    """Parameters of the next tokens' draws, kept while the slots hold the same requests.

    A token needs few numbers from many short arrays, and each operator on such an array takes microseconds. Requests
    enter and leave slots, for a rewind as well: in between, their numbers of tokens only grow.
    """

    def __init__(self) -> None:
        self._slots: bytes | None = None
        self._requests: RequestParameters
        # Of tokens from `_first` [n] on: [NUMBERS_AHEAD, n].
        self._uniforms: NDArray[np.float32]
        self._first: Int64s | None = None

    def forget(self) -> None:
        """Drops them, because a request has entered or left a slot."""
        self._slots = None

    def of(self, share_inputs: Mapping[str, Any], slots: Int64s) -> RequestParameters:
        """Returns the parameters of the requests in `slots` [n]."""
        if (key := slots.tobytes()) != self._slots:
            self._requests, self._slots, self._first = RequestParameters.of(share_inputs, slots), key, None
        return self._requests

    def draws(self, share_inputs: Mapping[str, Any], slots: Int64s) -> Draws:
        """Returns the draws of the next token of each slot [n]."""
        requests = self.of(share_inputs, slots)
        if requests.all_greedy:
            return requests.draws_by(requests.temperature)
        num_tokens: Int64s = share_inputs["step_idx"][slots, 0]
        if self._first is None:
            # The next step may have other slots; with the same ones, numbers are computed ahead.
            self._first = num_tokens - NUMBERS_AHEAD
            return requests.draws(num_tokens)
        if (num_tokens - self._first).max() >= NUMBERS_AHEAD:
            self._first = num_tokens
            self._uniforms = requests.uniforms(num_tokens + np.arange(NUMBERS_AHEAD)[:, None])
        return requests.draws_by(self._uniforms[num_tokens - self._first, np.arange(len(slots))])
