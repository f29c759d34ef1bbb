"""Builtins that add a bias by the request's tokens: to what continues a sequence, or to what the prompt contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
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
            self._edits.add(logits, self._rows, self._tokens, self._values)


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


class CiteFromPromptLogitsProcessor(SlotProcessor["_Citing"]):
    """`{"cite_boost": b}` adds b to the logits of every token of the prompt, and to the end-of-sequence tokens.

    From logits-processor-zoo. The prompt's tokens are collected once, their successors on first use.
    """

    Params = CiteFromPromptParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._entries = self._following = _entries([])

    def _build(self, request: SlotRequest) -> _Citing | None:
        boost = request.args.get("cite_boost")
        if boost is None:
            return None
        eos = self._eos_token_ids if request.args.get("cite_boost_eos", True) else ()
        return _Citing(request, boost, request.args.get("cite_conditional_boost", 0.0), eos)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - in the states
        if changed:
            self._entries = _entries([(row, state.tokens, state.boost) for row, state in self._slots])
        self._following = _entries(
            [(row, state.following(), state.conditional) for row, state in self._slots if state.conditional]
        )

    def _edit(self, logits: Tensor) -> None:
        self._edits.add(logits, *self._entries)
        if self._following[0].size:
            self._edits.add(logits, *self._following)


class _Citing:
    """Tokens and boosts of one request."""

    def __init__(self, request: SlotRequest, boost: float, conditional: float, eos: Sequence[int]) -> None:
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
    parts: Sequence[tuple[int, NDArray[np.int64], float]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Returns row, token and value of each entry."""
    counts = np.array([len(tokens) for _, tokens, _ in parts], np.int64)
    rows = np.repeat(np.array([row for row, _, _ in parts], np.int64), counts)
    tokens = np.concatenate([tokens for _, tokens, _ in parts] or [rows])
    return rows, tokens, np.repeat(np.array([value for *_, value in parts], np.float32), counts)
