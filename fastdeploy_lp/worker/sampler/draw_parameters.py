"""The parameters by which tokens are drawn, from the slots' requests."""

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
        if self.all_greedy:
            # The other fields are unused.
            return Draws(self.temperature, self.min_p, self.top_k, self.top_p, self.temperature)
        positions = self.offsets + num_tokens
        uniform = uniform_at(self.seeds, positions.astype(np.uint64))
        return Draws(self.temperature, self.min_p, self.top_k, self.top_p, uniform)


class DrawParameters:
    """Gathers the requests' parameters when slots change, and not for each token: a token needs few of so many arrays.

    Requests enter and leave slots.
    """

    def __init__(self) -> None:
        self._slots: bytes | None = None
        self._requests: RequestParameters

    def forget(self) -> None:
        """A request has entered or left a slot."""
        self._slots = None

    def of(self, share_inputs: Mapping[str, Any], slots: Int64s) -> RequestParameters:
        """Returns the parameters of the requests in `slots` [n]."""
        if (key := slots.tobytes()) != self._slots:
            self._requests, self._slots = RequestParameters.of(share_inputs, slots), key
        return self._requests
