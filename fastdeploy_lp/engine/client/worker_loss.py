"""The loss of a worker: its cause, the suspected processors, and the requests that do not run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastdeploy_lp.engine.client.work import Work
from fastdeploy_lp.engine.errors import ProcessorUnavailableError, RequestFailedError, WorkerLostError
from fastdeploy_lp.logits_processor.chain.calls import CallKind, Culprit

# A request present at two worker crashes probably caused them.
MAX_LOST_WORKERS = 2


@dataclass(frozen=True)
class WorkerLoss:
    """The loss of a worker: `how` it ended, as text, and the processors that were running then."""

    how: str
    culprits: tuple[Culprit, ...] = ()

    @property
    def cause(self) -> str:
        """The cause in one line, for logs and clients."""
        if not self.culprits:
            return self.how
        doing = {CallKind.CHAIN: "ran", CallKind.SHADOW: "ran in shadow", CallKind.BUILD: "was being built"}
        named = [f"logits processor {each.name} {doing[each.kind]}" for each in self.culprits]
        return f"{self.how} while {' and '.join(named)}"

    @property
    def in_chain(self) -> set[str]:
        """The names of the processors that requests relied on."""
        return {each.name for each in self.culprits if each.kind is not CallKind.SHADOW}


def ended_by(loss: WorkerLoss, works: Sequence[Work], ran: Sequence[Work]) -> list[tuple[Work, RequestFailedError]]:
    """Returns the requests that do not run again, each with its error; `ran`: the requests that may have had a slot.

    With culprits, only the requests that use one of them fail. Without, each request that may have had a slot may have
    ended the worker, and gets one more try.
    """
    if loss.culprits:
        return [(work, error) for work in works if (error := _blamed(loss, work, work in ran)) is not None]
    for work in ran:
        work.lost_workers += 1
    given_up = [work for work in works if work.lost_workers >= MAX_LOST_WORKERS]
    reason = f"{MAX_LOST_WORKERS} workers ended while this request ran, which is not run again: {loss.cause}"
    return [(work, WorkerLostError(reason)) for work in given_up]


def _blamed(loss: WorkerLoss, work: Work, ran: bool) -> RequestFailedError | None:
    names = [name for name in work.processors if name in loss.in_chain]
    if not names:
        return None
    make: Callable[[str], RequestFailedError] = RequestFailedError if ran else ProcessorUnavailableError
    return make(f"logits processor {names[0]} ended the worker, and is in quarantine: {loss.cause}")
