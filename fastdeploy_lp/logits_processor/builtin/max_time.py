"""Ends the output after a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.forcing import ForcingProcessor, ForcingState
from fastdeploy_lp.logits_processor.phrase import SentenceEnds
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest


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

    def state_of(self, request: SlotRequest) -> ForcingState | None:
        """See the base class."""
        seconds = request.args.get("max_time")
        if seconds is None or not self.eos_token_ids:
            return None
        ends = frozenset(request.args.get("max_time_complete_sentences") or ())
        return _Deadline(self.clock, self.clock() + seconds, self.eos_token_ids[0], request.output, ends)


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
