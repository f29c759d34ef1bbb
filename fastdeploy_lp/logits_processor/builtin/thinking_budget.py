"""Ends a model's reasoning after a number of tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.forcing import ForcingProcessor, ForcingState
from fastdeploy_lp.logits_processor.builtin.marker_finder import MarkerFinder
from fastdeploy_lp.logits_processor.phrase import Marker, Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest


class ThinkingBudgetParams(BaseModel):
    """`thinking_budget`: tokens of reasoning at most, its markers not counted; None for no limit.

    think_stop_sentence: written before the end of a reasoning that is cut short; it is part of the budget, as far as
    that reaches. think_start, think_end: the markers around reasoning, of any number of tokens; the first token list of
    `think_end` is the one that is written.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    thinking_budget: Annotated[int, Field(ge=0)] | None
    think_stop_sentence: Phrase | None = None
    think_start: Marker = Field(default="<think>", validate_default=True)
    think_end: Marker = Field(default="</think>", validate_default=True)


class ThinkingBudgetLogitsProcessor(ForcingProcessor):
    """`{"thinking_budget": n}` ends reasoning after n tokens: the stop sentence if there is one, then `</think>`.

    Reasoning begins in the output, or in the prompt when its last marker opens one; tokens of the prompt do not count.
    A half-written end marker is completed. Once reasoning has ended the output is free. From FastDeploy, which writes
    a newline no more (its change 6934).
    """

    Params = ThinkingBudgetParams

    def state_of(self, request: SlotRequest) -> ForcingState | None:
        """As the base class says."""
        budget, end = request.args.get("thinking_budget"), request.args.get("think_end")
        start = request.args.get("think_start")
        if budget is None or not start or not end:
            return None
        return _Thinking(request, budget, MarkerFinder(start), MarkerFinder(end))


class _Thinking:
    """Where one request's reasoning stands; a function of its tokens, so that it can be made from them at any time."""

    def __init__(self, request: SlotRequest, budget: int, start: MarkerFinder, end: MarkerFinder) -> None:
        self._start, self._end = start, end
        self._sentence: list[int] = list(request.args.get("think_stop_sentence") or ())
        self._forced_end: list[int] = list(request.args["think_end"][0])
        self._free = max(0, budget - len(self._sentence))
        # A marker may begin at the end of the prompt: so much of it is looked at with the output.
        kept = request.prompt[-max(start.longest, end.longest) :]
        self._known, self._output = kept, request.output
        self._seen = 0
        # Of the output, the place of the first token that counts; None outside reasoning.
        self._begun = 0 if _opens_reasoning(request.prompt, start, end) else None
        self._ended = False
        self._script: list[int] = []
        self._script_at = 0
        self._plan()

    def forced(self) -> int | None:
        """As `ForcingState` says."""
        while self._seen < len(self._output):
            self._take()
        at = self._seen - self._script_at
        return self._script[at] if at < len(self._script) else None

    def _take(self) -> None:
        """Take in one more token of the output."""
        self._seen += 1
        if self._ended:
            return
        if self._script:
            self._ended = self._seen >= self._script_at + len(self._script)
            return
        # Only as much as a marker can be long, so that a step does not cost the length of the output.
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
        """Settle what has to be written if the budget is used up."""
        if self._begun is None or self._ended or self._seen - self._begun < self._free:
            return
        begun = self._output[self._begun : self._seen][-self._end.longest :]
        rest = self._end.rest(begun, len(begun))
        self._script = rest if rest is not None else self._sentence + self._forced_end
        self._script_at = self._seen


def _opens_reasoning(prompt: Any, start: MarkerFinder, end: MarkerFinder) -> bool:
    """Whether the last marker in the prompt is one that begins reasoning."""
    for at in range(len(prompt), 0, -1):
        if end.ends(prompt, at):
            return False
        if start.ends(prompt, at):
            return True
    return False
