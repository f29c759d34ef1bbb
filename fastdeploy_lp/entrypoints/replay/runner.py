"""Runs the requests of a log again, with bounded concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from fastdeploy_lp.engine.logged_request import LogFormatError, LoggedEngine, LoggedRequest, read_line
from fastdeploy_lp.entrypoints.concurrently import for_each
from fastdeploy_lp.entrypoints.replay.backend import ReplayBackend, ReplayError
from fastdeploy_lp.entrypoints.replay.difference import can_replay, differences, to_run


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
