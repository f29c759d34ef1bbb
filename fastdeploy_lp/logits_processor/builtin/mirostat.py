"""Keeps the surprise of a text at a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.drawing import DrawingProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.platforms import on_host

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

DEFAULT_ETA = 0.1


class MirostatParams(BaseModel):
    """`mirostat_tau`: the surprise of a token to aim at, in bits; less is more predictable.

    mirostat_eta: how fast the bound of surprise follows the tokens.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    mirostat_tau: Annotated[float, Field(ge=0, le=100)] | None
    mirostat_eta: Annotated[float, Field(gt=0, le=10)] = DEFAULT_ETA


class MirostatLogitsProcessor(DrawingProcessor["_Control"]):
    """`{"mirostat_tau": n}` draws from tokens below a bound of surprise, which every token adjusts towards n bits.

    Mirostat 2.0: Basu et al. 2021, Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity. The
    surprise is that in the distribution after temperature and filters. The bound begins at 2 n, and survives
    preemption and rewinds; after a fault of the processor, it begins again.
    """

    Params = MirostatParams
    argument = "mirostat_tau"
    # Bounds do not follow from the tokens.
    remembered_per_slot = 4

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._bits: NDArray[np.float64] = np.empty(0)
        # Of the last draw: the states of its rows, with their numbers of tokens before it, and the surprises.
        self._drawn: list[tuple[int, _Control, int]] = []
        self._surprises: Tensor | NDArray[np.float64] | None = None

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads the surprises of the last draw, then prepares the next one."""
        if self._surprises is not None:
            # The step's own read has already waited for the device.
            surprises = on_host(self._surprises)
            for row, state, place in self._drawn:
                state.observe(place, float(surprises[row]))
            self._surprises = None
        super().update_state(share_inputs)

    def _build(self, request: SlotRequest) -> _Control | None:
        tau = request.args.get("mirostat_tau")
        return None if tau is None else _Control(tau, request.args.get("mirostat_eta", DEFAULT_ETA))

    def _rewound(self, state: _Control, request: SlotRequest) -> _Control:  # noqa: ARG002 - bounds go by place
        return state

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        outputs = share_inputs["output_token_ids"]
        # Without a bound where the argument is null.
        self._bits = np.full(int(np.count_nonzero(~share_inputs["stop_flags"])), np.inf)
        self._drawn = []
        for slot, (row, state) in zip(self._slots.slots.tolist(), self._slots, strict=True):
            place = len(outputs[slot])
            self._drawn.append((row, state, place))
            self._bits[row] = state.bound_at(place)

    def _choose(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor | NDArray[np.int64]:
        tokens, self._surprises = self._choices.below_surprise(logits, self._bits, uniforms)
        return tokens


class _Control:
    """The bounds of one request's tokens, in bits, by the number of tokens before."""

    def __init__(self, tau: float, eta: float) -> None:
        self._tau, self._eta = tau, eta
        self._bounds: dict[int, float] = {}

    def bound_at(self, place: int) -> float:
        """Returns the bound of the token after `place` tokens."""
        return self._bounds.setdefault(place, 2 * self._tau)

    def observe(self, place: int, surprise: float) -> None:
        """Adjusts the bound by the surprise of the token after `place` tokens."""
        self._bounds[place + 1] = self._bounds[place] - self._eta * (surprise - self._tau)
