"""Adds a bias to the last token of chosen sequences of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.logit_bias import Bias
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.builtin.token_lists import MAX_SEQUENCES, TokenSequence
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class SequenceBiasParams(BaseModel):
    """`sequence_bias`: pairs of a list of token ids and the bias for the last of them; -inf rules it out."""

    model_config = ConfigDict(extra="forbid")

    sequence_bias: Annotated[list[tuple[TokenSequence, Bias]], Field(max_length=MAX_SEQUENCES)] | None = None


class SequenceBiasLogitsProcessor(SlotProcessor["_Biases"]):
    """`{"sequence_bias": [[[token_id, …], bias], …]}` adds each bias to the last token of its list after the others.

    A bias applies while prompt and output end with the other tokens. Biases for one token add up. As in Hugging Face.
    """

    Params = SequenceBiasParams

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._rows = self._tokens = np.empty(0, np.int64)
        self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Biases | None:
        given = request.args.get("sequence_bias")
        return _Biases(given, request.prompt, request.output) if given else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        entries = [state.now() for state in self._slots.states]
        self._rows = np.repeat(self._slots.rows, np.array([len(each) for each in entries], np.int64))
        self._tokens = np.array([token for each in entries for token, _ in each], np.int64)
        self._values = np.array([bias for each in entries for _, bias in each], np.float32)

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._cuts.add(logits, self._rows, self._tokens, self._values)


class _Biases:
    """One request's sequences, by the token that must come last for them to apply."""

    def __init__(self, given: Sequence[tuple[list[int], float]], prompt: Sequence[int], output: Sequence[int]) -> None:
        self._single = [(tokens[0], bias) for tokens, bias in given if len(tokens) == 1]
        self._behind: dict[int, list[tuple[list[int], int, float]]] = {}
        for tokens, bias in given:
            if len(tokens) > 1:
                self._behind.setdefault(tokens[-2], []).append((list(tokens[:-1]), tokens[-1], bias))
        self._prompt, self._output = prompt, output

    def now(self) -> list[tuple[int, float]]:
        """Returns tokens and the bias for each."""
        text = self._output or self._prompt
        candidates = self._behind.get(text[-1]) if text else None
        if not candidates:
            return self._single
        found = [(token, bias) for beginning, token, bias in candidates if self._ends_with(beginning)]
        return [*self._single, *found]

    def _ends_with(self, tokens: list[int]) -> bool:
        behind = self._output[-len(tokens) :]
        missing = len(tokens) - len(behind)
        return list(behind) == tokens[missing:] and (not missing or list(self._prompt[-missing:]) == tokens[:missing])
