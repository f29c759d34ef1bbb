"""Runs the requests of a log again, with bounded concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from fastdeploy_lp.engine.client.logged_request import (
    LogFormatError,
    LoggedEngine,
    LoggedOutput,
    LoggedRequest,
    read_line,
)
from fastdeploy_lp.entrypoints.concurrently import for_each


class ReplayError(RuntimeError):
    """A request that cannot be run again; the message states the reason."""


class ReplayBackend(Protocol):
    """Runs requests."""

    async def outputs(self, request: LoggedRequest) -> list[LoggedOutput]:
        """Runs a recorded request again and returns its outputs; raises ReplayError."""


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


@dataclass
class ReplayTally:
    """Counts of replayed records.

    skipped: requests that failed or that have no token. engines: the engines that ran the recorded requests, by id.
    """

    same: int = 0
    different: int = 0
    skipped: int = 0
    damaged: int = 0
    engines: dict[str, LoggedEngine] = field(default_factory=dict)


class ReplayRunner:
    """Compares every request with its record; calls `report` with a line for each difference."""

    def __init__(self, backend: ReplayBackend, report: Callable[[str], None]) -> None:
        self._backend = backend
        self._report = report
        self.tally = ReplayTally()

    async def run(self, lines: Iterable[bytes], concurrency: int) -> None:
        """Runs until every record is compared; passes on the backend's exceptions except ReplayError."""
        await for_each(self._requests(lines), self._replay, concurrency)

    def _requests(self, lines: Iterable[bytes]) -> Iterator[LoggedRequest]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = read_line(line)
            except LogFormatError as error:
                self.tally.damaged += 1
                self._report(f"line {number}: {error}")
                continue
            if isinstance(record, LoggedEngine):
                self.tally.engines[record.id] = record
            elif can_replay(record):
                yield record
            else:
                self.tally.skipped += 1

    async def _replay(self, request: LoggedRequest) -> None:
        try:
            outputs = await self._backend.outputs(to_run(request))
        except ReplayError as error:
            self.tally.different += 1
            self._report(f"{request.request_id}: {error}")
            return
        found = differences(request, outputs)
        self.tally.different += bool(found)
        self.tally.same += not found
        for difference in found:
            self._report(str(difference))
