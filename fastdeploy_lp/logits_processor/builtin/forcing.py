"""Builtins that force tokens: a prefix, the end after a time, and the end of reasoning after a number of tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.marker_finder import MarkerFinder
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.token_arguments import Marker, Phrase, SentenceEnds

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class ForcingState(Protocol):
    """State of one request of a `ForcingProcessor`."""

    def forced(self) -> int | None:
        """Returns the token that must come next, None to leave the row unchanged."""

    def rest(self) -> Sequence[int]:
        """Returns the tokens that must come next, in order, without an end of the output, which nothing follows."""


class ForcingProcessor(SlotProcessor[ForcingState]):
    """Rules out all tokens but the one that a request's state returns; leaves other rows untouched."""

    # A forced token gets a new logit, so one finite logit remains whatever was ruled out before.
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._rows = self._tokens = np.empty(0, np.int64)

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        """See `LogitsProcessor`."""
        state = self._slots.state_of(slot, output)
        return () if state is None else state.rest()

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        forced = [(row, token) for row, state in self._slots if (token := state.forced()) is not None]
        self._rows = np.array([row for row, _ in forced], np.int64)
        self._tokens = np.array([token for _, token in forced], np.int64)

    def _edit(self, logits: Tensor) -> None:
        if self._rows.size:
            self._edits.force(logits, self._rows, self._tokens)


class ForcedSequenceParams(BaseModel):
    """`forced_sequence`: the first words of the output, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    forced_sequence: Phrase | None


class ForcedSequenceLogitsProcessor(ForcingProcessor):
    """`{"forced_sequence": "Sure, here is"}` makes the output begin with these words; then the model continues freely.

    Known as prefix forcing; Hugging Face's `forced_bos_token_id` is the case of one token.
    """

    Params = ForcedSequenceParams

    def _build(self, request: SlotRequest) -> ForcingState | None:
        sequence = request.args.get("forced_sequence")
        return _Beginning(sequence, request.output) if sequence else None


@dataclass(frozen=True)
class _Beginning:
    sequence: Any
    output: list[int]

    def forced(self) -> int | None:
        """Returns the token of the sequence at the output's length, None after the last one."""
        length = len(self.output)
        return self.sequence[length] if length < len(self.sequence) else None

    def rest(self) -> Sequence[int]:
        """See `ForcingState`."""
        rest: Sequence[int] = self.sequence[len(self.output) :]
        return rest


class MaxTimeParams(BaseModel):
    """`max_time`: seconds after the first token at which the output ends.

    max_time_complete_sentences: the output then continues to the end of a sentence; true, or the texts that end one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    max_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    max_time_complete_sentences: SentenceEnds = []


class MaxTimeLogitsProcessor(ForcingProcessor):
    """`{"max_time": seconds}` ends the output with the end-of-sequence token when the time is up.

    The clock starts at the request's first token, regardless of the time it waited before; a preempted request keeps
    its clock. From logits-processor-zoo and Hugging Face's `max_time`.
    """

    Params = MaxTimeParams
    # Finished requests also take places until preempted requests return.
    remembered_per_slot = 4
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def _build(self, request: SlotRequest) -> ForcingState | None:
        seconds = request.args.get("max_time")
        if seconds is None or not self._eos_token_ids:
            return None
        ends = frozenset(request.args.get("max_time_complete_sentences") or ())
        return _Deadline(self.clock, self.clock() + seconds, self._eos_token_ids[0], request.output, ends)

    def _rewound(self, state: ForcingState, request: SlotRequest) -> ForcingState | None:
        """Keeps the request's clock."""
        return replace(state, output=request.output) if isinstance(state, _Deadline) else self._build(request)


@dataclass(frozen=True)
class _Deadline:
    clock: Callable[[], float]
    at: float
    eos: int
    output: list[int]
    sentence_ends: frozenset[int]

    def forced(self) -> int | None:
        """Returns the end-of-sequence token after the deadline, None before."""
        if self.clock() < self.at:
            return None
        waits = self.sentence_ends and self.output and self.output[-1] not in self.sentence_ends
        return None if waits else self.eos

    def rest(self) -> Sequence[int]:
        """See `ForcingState`: it forces the end alone."""
        return ()


class ThinkingBudgetParams(BaseModel):
    """`thinking_budget`: maximum number of reasoning tokens, markers not counted; None for no limit.

    think_stop_sentence: written before the end of reasoning that is cut short; it counts toward the budget, up to its
    size. think_start, think_end: markers around reasoning, of any number of tokens; the first token list of `think_end`
    is the one written.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    thinking_budget: Annotated[int, Field(ge=0)] | None
    think_stop_sentence: Phrase | None = None
    think_start: Marker = Field(default="<think>", validate_default=True)
    think_end: Marker = Field(default="</think>", validate_default=True)


class ThinkingBudgetLogitsProcessor(ForcingProcessor):
    """`{"thinking_budget": n}` ends reasoning after n tokens, with the stop sentence if there is one, then `</think>`.

    Reasoning begins in the output, or in the prompt if its last marker is a start marker; prompt tokens do not count. A
    partial end marker is completed. After the end of reasoning the output is free. From FastDeploy, which no longer
    writes a newline (its change 6934).
    """

    Params = ThinkingBudgetParams

    def _build(self, request: SlotRequest) -> ForcingState | None:
        budget, end = request.args.get("thinking_budget"), request.args.get("think_end")
        start = request.args.get("think_start")
        if budget is None or not start or not end:
            return None
        return _Thinking(request, budget, MarkerFinder(start), MarkerFinder(end))


class _Thinking:
    """State of one request's reasoning; a function of its tokens, so that it can be rebuilt from them at any time."""

    def __init__(self, request: SlotRequest, budget: int, start: MarkerFinder, end: MarkerFinder) -> None:
        self._start, self._end = start, end
        self._sentence: list[int] = list(request.args.get("think_stop_sentence") or ())
        self._forced_end: list[int] = list(request.args["think_end"][0])
        self._free = max(0, budget - len(self._sentence))
        # A marker may begin at the end of the prompt, so that part is searched with the output.
        kept = request.prompt[-max(start.longest, end.longest) :]
        self._known, self._output = kept, request.output
        self._seen = 0
        # Output index of the first token that counts; None before reasoning begins.
        self._begun = 0 if _opens_reasoning(request.prompt, start, end) else None
        self._ended = False
        self._script: list[int] = []
        self._script_at = 0
        self._plan()

    def forced(self) -> int | None:
        """See `ForcingState`."""
        return next(iter(self.rest()), None)

    def rest(self) -> Sequence[int]:
        """See `ForcingState`."""
        while self._seen < len(self._output):
            self._take()
        return self._script[self._seen - self._script_at :]

    def _take(self) -> None:
        """Reads one more token of the output."""
        self._seen += 1
        if self._ended:
            return
        if self._script:
            self._ended = self._seen >= self._script_at + len(self._script)
            return
        # Only as many tokens as the longest marker has: a step's cost must not grow with the output.
        window = max(self._start.longest, self._end.longest)
        recent = (self._known + self._output[: self._seen])[-window:] if self._seen < window else self._recent(window)
        if self._begun is None:
            self._begun = self._seen if self._start.ends(recent, len(recent)) else None
        else:
            since = len(recent) - min(len(recent), self._seen - self._begun)
            self._ended = self._end.ends(recent, len(recent), since)
        self._plan()

    def _recent(self, window: int) -> list[int]:
        return self._output[self._seen - window : self._seen]

    def _plan(self) -> None:
        """Sets the tokens to write if the budget is used up."""
        if self._begun is None or self._ended or self._seen - self._begun < self._free:
            return
        begun = self._output[self._begun : self._seen][-self._end.longest :]
        rest = self._end.rest(begun, len(begun))
        self._script = rest if rest is not None else self._sentence + self._forced_end
        self._script_at = self._seen


def _opens_reasoning(prompt: Any, start: MarkerFinder, end: MarkerFinder) -> bool:
    """Returns True if the last marker in the prompt is a start marker."""
    for at in range(len(prompt), 0, -1):
        if end.ends(prompt, at):
            return False
        if start.ends(prompt, at):
            return True
    return False
