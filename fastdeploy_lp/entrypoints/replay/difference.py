"""Differences between a replayed request and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from fastdeploy_lp.engine.logged_request import LoggedOutput, LoggedRequest

ABORTED = "abort"


@dataclass(frozen=True)
class Difference:
    """A difference in one output; `reason` describes it."""

    request_id: str
    index: int
    reason: str

    def __str__(self) -> str:
        return f"{self.request_id}, output {self.index}: {self.reason}"


def can_replay(request: LoggedRequest) -> bool:
    """True if the request did not fail and has an output with a token to compare."""
    return request.error is None and any(output.token_ids for output in request.outputs)


def to_run(request: LoggedRequest) -> LoggedRequest:
    """Returns the request, limited to its recorded length if all its outputs were aborted."""
    if any(output.finish_reason != ABORTED for output in request.outputs):
        return request
    longest = max(len(output.token_ids) for output in request.outputs)
    params = msgspec.structs.replace(
        request.params, max_tokens=longest, min_tokens=min(request.params.min_tokens, longest)
    )
    return replace(request, params=params)


def differences(request: LoggedRequest, replayed: Sequence[LoggedOutput]) -> list[Difference]:
    """Returns one difference for each changed output; compares only the recorded tokens of aborted outputs."""
    found = {output.index: output for output in replayed}
    reasons = {output.index: _reason(output, found.get(output.index)) for output in request.outputs}
    return [Difference(request.request_id, index, reason) for index, reason in reasons.items() if reason]


def _reason(recorded: LoggedOutput, replayed: LoggedOutput | None) -> str | None:
    if replayed is None:
        return "it was not given"
    before, now = recorded.token_ids, replayed.token_ids
    if recorded.finish_reason == ABORTED:
        now = now[: len(before)]
    for place, (one, other) in enumerate(zip(before, now, strict=False)):
        if one != other:
            return f"token {place} was {one}, now {other}"
    if len(before) != len(now):
        return f"it had {len(before)} tokens, now {len(now)}"
    if recorded.finish_reason in (ABORTED, replayed.finish_reason) and _same_stop(recorded, replayed):
        return None
    ends = [f"{each.finish_reason} {each.stop_reason!r}" for each in (recorded, replayed)]
    return f"it ended by {ends[0]}, now by {ends[1]}"


def _same_stop(recorded: LoggedOutput, replayed: LoggedOutput) -> bool:
    # Over HTTP, the model's end of sequence has no stop reason.
    return None in (recorded.stop_reason, replayed.stop_reason) or recorded.stop_reason == replayed.stop_reason
