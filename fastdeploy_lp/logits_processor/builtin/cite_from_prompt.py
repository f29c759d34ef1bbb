"""Adds a bias to the tokens of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.builtin.logit_rows import LogitRows
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

Boost = Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)]


class CiteFromPromptParams(BaseModel):
    """`cite_boost`: bias added to the logits of the prompt's tokens; below 0 makes the model use other words.

    cite_boost_eos: true adds it also to the end-of-sequence tokens, so that outputs do not get longer.
    cite_conditional_boost: bias added to the tokens that follow the last token anywhere in the prompt.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    cite_boost: Boost | None
    cite_boost_eos: bool = True
    cite_conditional_boost: Boost = 0.0


class CiteFromPromptLogitsProcessor(LogitsProcessor):
    """`{"cite_boost": b}` adds b to the logits of every token of the prompt, and to the end-of-sequence tokens.

    From logits-processor-zoo. The prompt's tokens are collected once, their successors on first use.
    """

    Params = CiteFromPromptParams
    only_with_args = True
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._eos_token_ids = list(fd_config.model_config.eos_token_ids)
        self._states = SlotStates(self._state_of)
        self._entries: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] | None = None
        self._conditional: list[tuple[int, NDArray[np.int64], float]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Follows the batch; rebuilds the entries only when the batch has changed."""
        if self._states.follow(share_inputs):
            self._entries = None
        following = ((row, state.following(), state.conditional) for row, state in self._states if state.conditional)
        self._conditional = [entry for entry in following if entry[1].size]

    def apply(self, logits: Tensor) -> Tensor:
        """Adds the boosts in place."""
        if not self._states.states:
            return logits
        if self._entries is None:
            self._entries = _entries([(row, state.tokens, state.boost) for row, state in self._states])
        rows = LogitRows(logits)
        rows.add(*self._entries)
        if self._conditional:
            rows.add(*_entries(self._conditional))
        return logits

    def _state_of(self, request: SlotRequest) -> _Citing | None:
        boost = request.args.get("cite_boost")
        if boost is None:
            return None
        eos = self._eos_token_ids if request.args.get("cite_boost_eos", True) else []
        return _Citing(request, boost, request.args.get("cite_conditional_boost", 0.0), eos)


class _Citing:
    """Tokens and boosts of one request."""

    def __init__(self, request: SlotRequest, boost: float, conditional: float, eos: list[int]) -> None:
        self.boost, self.conditional = boost, conditional
        self.tokens = np.unique(np.array([*request.prompt, *eos], np.int64))
        self._prompt, self._output = request.prompt, request.output

    def following(self) -> NDArray[np.int64]:
        """Returns the tokens that follow the request's last token anywhere in the prompt."""
        last = (self._output or self._prompt)[-1]
        return self._successors.get(last, np.empty(0, np.int64))

    @cached_property
    def _successors(self) -> dict[int, NDArray[np.int64]]:
        found: dict[int, set[int]] = {}
        for token, following in zip(self._prompt, self._prompt[1:], strict=False):
            found.setdefault(token, set()).add(following)
        return {token: np.array(sorted(following), np.int64) for token, following in found.items()}


def _entries(
    parts: list[tuple[int, NDArray[np.int64], float]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Returns row, token and value of each entry."""
    counts = [len(tokens) for _, tokens, _ in parts]
    rows = np.repeat(np.array([row for row, _, _ in parts], np.int64), counts)
    return rows, np.concatenate([tokens for _, tokens, _ in parts]), np.repeat([value for *_, value in parts], counts)
