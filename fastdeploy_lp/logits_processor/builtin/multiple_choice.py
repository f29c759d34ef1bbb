"""Restricts the output to one of several answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.token_arguments import Phrase, PhraseForms

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.row_ops import TokenLists

MAX_CHOICES = 1024
COMPLETE = -1


class MultipleChoiceParams(BaseModel):
    """`choices`: the answers, each a text or token ids; a text may also be written with a space before it.

    choice_first_word_boost: factor for the logit of the word that follows "choice, delimiter" in the prompt; the
    product is added to the logit of the choice's first token, so that the model's opinion of the answer's words counts.
    choice_delimiter: that delimiter.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    choices: Annotated[list[PhraseForms], Field(min_length=1, max_length=MAX_CHOICES)] | None
    choice_first_word_boost: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    choice_delimiter: Phrase = Field(default=".", validate_default=True)


class MultipleChoiceLogitsProcessor(SlotProcessor["_Choosing"]):
    """`{"choices": ["A", "B"]}` rules out every token that leads to none of the answers, then ends the output.

    The remaining tokens keep their logits. From logits-processor-zoo, which supports only answers of one token and does
    not end the output.
    """

    Params = MultipleChoiceParams

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._allowed: TokenLists | None = None
        self._boosts: list[tuple[int, _Choosing]] = []

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        """See `LogitsProcessor`: the tokens up to the next choice."""
        state = self._slots.state_of(slot, output)
        return () if state is None else state.rest()

    def _build(self, request: SlotRequest) -> _Choosing | None:
        choices = request.args.get("choices")
        return _Choosing(request, choices, self._eos_token_ids) if choices else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        # Imported here: the API process reads Params from this module and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.row_ops import TokenLists

        allowed = [(row, tokens) for row, state in self._slots if (tokens := state.allowed()).size]
        rows, lists = [row for row, _ in allowed], [tokens for _, tokens in allowed]
        self._allowed = TokenLists.of(rows, lists) if rows else None
        self._boosts = [(row, state) for row, state in self._slots if state.first_words and not state.begun]

    def _edit(self, logits: Tensor) -> None:
        if self._allowed is None:
            return
        for row, state in self._boosts:
            choices, words = np.array(state.first_words, np.int64).T.copy()
            rows = np.full(len(words), row, np.int64)
            self._edits.add(logits, rows, choices, state.boost * self._edits.values_at(logits, rows, words))
        self._edits.allow_only(logits, self._allowed)


class _Choosing:
    """Progress of one request's answer."""

    def __init__(self, request: SlotRequest, choices: Sequence[Sequence[list[int]]], eos: Sequence[int]) -> None:
        self._output, self._seen = request.output, 0
        self._eos = eos
        # Every node maps tokens to nodes; the key COMPLETE marks a complete answer.
        self._node = _tree([form for forms in choices for form in forms])
        self.boost: float = request.args.get("choice_first_word_boost", 0.0)
        delimiter = request.args.get("choice_delimiter")
        self.first_words: list[tuple[int, int]] = []
        if self.boost and delimiter:
            self.first_words = _first_words(request.prompt, choices, delimiter)

    @property
    def begun(self) -> bool:
        """True if the output has a token."""
        return bool(self._output)

    def allowed(self) -> NDArray[np.int64]:
        """Returns the tokens that may come next, empty if nothing is to be ruled out."""
        self._follow()
        tokens = [token for token in self._node if token != COMPLETE]
        if COMPLETE in self._node:
            tokens += [token for token in self._eos if token not in self._node]
        return np.array(tokens, np.int64)

    def rest(self) -> list[int]:
        """Returns the tokens that come next, up to the next choice or the end."""
        self._follow()
        found, node = [], self._node
        while len(node) == 1 and COMPLETE not in node:
            ((token, node),) = node.items()
            found.append(token)
        return found

    def _follow(self) -> None:
        for token in self._output[self._seen :]:
            # After a token that another processor forced, only the end remains.
            self._node = self._node.get(token, {COMPLETE: {}})
        self._seen = len(self._output)


def _tree(sequences: Sequence[list[int]]) -> dict[int, Any]:
    root: dict[int, Any] = {}
    for sequence in sequences:
        node = root
        for token in sequence:
            node = node.setdefault(token, {})
        node[COMPLETE] = {}
    return root


def _first_words(
    prompt: list[int], choices: Sequence[Sequence[list[int]]], delimiter: list[int]
) -> list[tuple[int, int]]:
    """Returns, for each choice in the prompt, its first token in each form and the token after its delimiter.

    The last occurrence counts, since a question is at the end of a prompt.
    """
    found: list[tuple[int, int]] = []
    for forms in choices:
        places = [at for form in forms if (at := _last_end(prompt, [*form, *delimiter])) is not None]
        if places:
            found += [(first, prompt[max(places)]) for first in dict.fromkeys(form[0] for form in forms)]
    return found


def _last_end(prompt: list[int], wanted: list[int]) -> int | None:
    """Returns the position after the last occurrence that another token follows, None if there is none."""
    for at in range(len(prompt) - 1 - len(wanted), -1, -1):
        if prompt[at : at + len(wanted)] == wanted:
            return at + len(wanted)
    return None
