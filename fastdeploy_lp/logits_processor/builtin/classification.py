"""Classifies a prompt in one step, without generating text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.token_arguments import PhraseForms

if TYPE_CHECKING:
    from paddle import Tensor

MAX_LABELS = 256
MAX_LABEL = 64
"""Characters of a label, so that the probabilities of all labels are small enough to be emitted."""


class Label(BaseModel):
    """A label: `text` names it in the answer, and the output would begin with one of `tokens`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1, max_length=MAX_LABEL)]
    tokens: PhraseForms


def _named(value: Any) -> Any:
    return {"text": value, "tokens": value} if isinstance(value, str) else value


def _distinct(labels: list[Label]) -> list[Label]:
    """Returns labels of which one token decides; raises ValueError for two that begin with the same token."""
    owners: dict[int, Label] = {}
    for label in labels:
        for token in _first_tokens(label.tokens):
            other = owners.setdefault(token, label)
            if other is not label:
                problem = f"{other.text!r} and {label.text!r} begin with the same token ({token})"
                raise ValueError(f"{problem}, so that one step cannot tell them apart; use labels such as 'A' and 'B'")
    return labels


def _first_tokens(forms: Sequence[Sequence[int]]) -> list[int]:
    return list(dict.fromkeys(form[0] for form in forms))


TextLabel = Annotated[Label, BeforeValidator(_named, json_schema_input_type=str | Label)]


class ClassProbabilitiesParams(BaseModel):
    """`class_labels`: the labels, each a text or `{"text": …, "tokens": …}` with token ids.

    A text also counts with a space before it. No two labels may begin with the same token.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    class_labels: (
        Annotated[list[TextLabel], Field(min_length=1, max_length=MAX_LABELS), AfterValidator(_distinct)] | None
    )


class ClassProbabilities(BaseModel):
    """Result of a classification.

    label: the most likely label, the first one of several; None if each has probability 0. probabilities: of each
    label, the probability that the output begins with its first token; the rest to 1 is that of any other token.
    """

    label: str | None
    probabilities: dict[str, float]


class ClassProbabilitiesLogitsProcessor(SlotProcessor["_Labels"]):
    """`{"class_labels": ["A", "B"]}` emits the probability of each label as the first token, then ends the request.

    Probabilities are the softmax over the whole vocabulary at this place of the chain, before the temperature. The
    answer has no tokens. Reading them waits for the device, in steps with such a request alone.
    """

    Params = ClassProbabilitiesParams
    Output = ClassProbabilities
    keeps_rows_valid = True

    def _build(self, request: SlotRequest) -> _Labels | None:
        labels = request.args.get("class_labels")
        return _Labels(labels) if labels else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        """Does nothing: the result follows from the logits alone."""

    def _edit(self, logits: Tensor) -> None:
        states, rows = self._slots.states, _read(logits, self._slots.rows)
        for slot, row, labels in zip(self._slots.slots.tolist(), rows, states, strict=True):
            found = labels.classified(row)
            if found is not None:
                self.actions.emit(slot, found)
                self.actions.finish(slot, "classified")


def _read(logits: Tensor, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns these rows of logits [*, vocab_size] in one read, float32 [rows, vocab_size]."""
    import paddle

    from fastdeploy_lp.platforms import to_device
    from fastdeploy_lp.platforms.host_memory import writable_view

    view = writable_view(logits)
    if view is not None:
        return view[rows].astype(np.float32, copy=False)
    found: NDArray[np.float32] = paddle.gather(logits, to_device(rows)).astype("float32").numpy()
    return found


class _Labels:
    """Labels of one request."""

    def __init__(self, labels: Sequence[Mapping[str, Any]]) -> None:
        firsts = [_first_tokens(label["tokens"]) for label in labels]
        self._texts = [label["text"] for label in labels]
        self._tokens = np.array([token for each in firsts for token in each], np.int64)
        self._owners = np.repeat(np.arange(len(labels)), [len(each) for each in firsts])

    def classified(self, row: NDArray[np.float32]) -> ClassProbabilities | None:
        """Returns the result for logits [vocab_size]; None for a row that cannot be sampled from."""
        highest = row.max()
        if not np.isfinite(highest):
            return None
        weights = np.exp(row - highest)
        shares = weights[self._tokens].astype(np.float64) / weights.sum(dtype=np.float64)
        found = np.bincount(self._owners, shares, len(self._texts))
        best = self._texts[int(found.argmax())] if found.any() else None
        probabilities = dict(zip(self._texts, found.tolist(), strict=True))
        return ClassProbabilities.model_construct(label=best, probabilities=probabilities)
