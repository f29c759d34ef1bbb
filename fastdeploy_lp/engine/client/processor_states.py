"""The declared logits processors in the API process: descriptions, and state in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.engine.errors import ProcessorUnavailableError, discreet
from fastdeploy_lp.logits_processor import DeclaredProcessor, ProcessorStats, Selection
from fastdeploy_lp.logits_processor.chain.calls import CallKind
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.logits_processor.stages import LOGITS, Stage
from fastdeploy_lp.stats import (
    OK,
    QUARANTINED,
    ShadowStats,
)

UPLOADS = "(uploads)"
"""Name in metrics of all uploaded processors together."""


@dataclass(frozen=True)
class ProcessorInfo:
    """One declared processor, as listed by `GET /v1/logits_processors` and `LLM.logits_processors`.

    order: its position in the chain, from 0. parameters: JSON Schema of its arguments, None if unknown.
    argmax_invariant: None until the worker has built it. mandatory: no request can leave it out. output: JSON Schema of
    the values that it emits, None if it declares none. stage: when it runs, "logits", "filtered" or "draw".
    """

    name: str
    dialect: str
    source: str
    spec: str
    order: int
    argmax_invariant: bool | None
    parameters: dict[str, Any] | None
    description: str
    stats: ProcessorStats
    mandatory: bool = False
    output: dict[str, Any] | None = None
    stage: Stage = LOGITS


class ProcessorStates:
    """The declared processors in chain order, with the latest counters from the worker."""

    def __init__(self, declared: Sequence[DeclaredProcessor]) -> None:
        self._declared = list(declared)
        self._stats = {processor.name: ProcessorStats(processor.name) for processor in declared}
        self._argmax_invariant: dict[str, bool] = {}

    @property
    def stats(self) -> list[ProcessorStats]:
        """Counters in chain order, then the counters of uploaded processors."""
        return list(self._stats.values())

    @property
    def reported(self) -> list[ProcessorStats]:
        """Counters for metrics and logs, where uploaded processors, which only their owners know, count as one."""
        names = {processor.name for processor in self._declared}
        declared = [each for each in self.stats if each.name in names]
        uploaded = [each for each in self.stats if each.name not in names]
        return [*declared, msgspec.structs.replace(_added_up(uploaded), name=UPLOADS)] if uploaded else declared

    def stats_of(self, name: str) -> ProcessorStats:
        """Returns the counters of a processor; of an uploaded one, since the worker knows it."""
        return next((each for each in self.stats if each.name == name), ProcessorStats(name))

    def update(self, stats: Sequence[ProcessorStats]) -> None:
        """Stores newer counters."""
        names = {processor.name for processor in self._declared}
        kept = {name: each for name, each in self._stats.items() if name in names}
        # The worker reports all uploaded processors that it knows.
        self._stats = kept | {each.name: each for each in stats}

    def restart(self, loss: WorkerLoss) -> None:
        """Resets the counters after a worker's end; the quarantine stays, and the culprits join it."""
        quarantine = Quarantine.of(self.stats)
        self._stats = {processor.name: ProcessorStats(processor.name) for processor in self._declared}
        for culprit in loss.culprits:
            named = quarantine.shadow if culprit.kind is CallKind.SHADOW else quarantine.chain
            named[culprit.name] = f"logits processor {culprit.name} ended the worker: {loss.cause}"
        quarantine.apply_to(self._stats)

    @property
    def quarantine(self) -> Quarantine:
        """The processors that are out of service."""
        return Quarantine.of(self.stats)

    def set_argmax_invariant(self, by_name: dict[str, bool]) -> None:
        """Stores the `argmax_invariant` of each processor that the worker built; some in quarantine are not built."""
        self._argmax_invariant |= by_name

    def describe(self) -> list[ProcessorInfo]:
        """Describes all processors, in chain order."""
        return [
            ProcessorInfo(
                name=processor.name,
                dialect=processor.dialect.name,
                source=processor.source,
                spec=processor.spec,
                order=order,
                argmax_invariant=self._argmax_invariant.get(processor.name),
                parameters=processor.params_model.model_json_schema() if processor.params_model else None,
                description=processor.description,
                stats=self._stats[processor.name],
                mandatory=processor.mandatory,
                stage=processor.stage,
                output=processor.output_model.model_json_schema(mode="serialization")
                if processor.output_model
                else None,
            )
            for order, processor in enumerate(self._declared)
        ]

    def used_by(self, selection: Selection) -> list[str]:
        """Returns the names of the processors that a request uses, mandatory ones included, in chain order.

        Uploaded processors are the first.
        """
        declared = [processor.name for processor in self._declared if processor.is_used_by(selection)]
        return [*selection.brought, *declared]

    def require_in_service(self, selection: Selection) -> None:
        """Raises ProcessorUnavailableError if the request uses a processor that is in quarantine."""
        for name in self.used_by(selection):
            stats = self._stats.get(name)
            if stats is not None and stats.state == QUARANTINED:
                reason = f"is in quarantine until an operator resets it: {stats.last_error}"
                error = ProcessorUnavailableError(f"logits processor {name} {reason}")
                raise discreet(error, selection.secret)

    def reset(self, name: str) -> None:
        """Marks a processor as in service; raises KeyError for a name that is not declared."""
        self._stats[name].state = OK
        self._stats[name].shadow.state = OK


class ProcessorStatesOfAll(ProcessorStates):
    """States of several workers as one: adds up counters; a processor is in quarantine if any worker has it there."""

    def __init__(self, declared: Sequence[DeclaredProcessor], parts: Sequence[ProcessorStates]) -> None:
        super().__init__(declared)
        self._parts = list(parts)

    @property
    def stats(self) -> list[ProcessorStats]:
        """Counters in chain order, then the counters of uploaded processors."""
        by_name: dict[str, list[ProcessorStats]] = {}
        for part in self._parts:
            for each in part.stats:
                by_name.setdefault(each.name, []).append(each)
        return [_added_up(each) for each in by_name.values()]

    def describe(self) -> list[ProcessorInfo]:
        """Describes all processors, in chain order."""
        self.update(self.stats)
        for part in self._parts:
            self._argmax_invariant |= part._argmax_invariant
        return super().describe()


def _added_up(stats: Sequence[ProcessorStats]) -> ProcessorStats:
    shadow = ShadowStats(**_sums([each.shadow for each in stats]))
    return ProcessorStats(name=stats[0].name, shadow=shadow, **_sums(stats))


def _sums(stats: Sequence[ProcessorStats | ShadowStats]) -> dict[str, Any]:
    """Returns the sum of every number, the worst state, and a last error if there is one."""
    numbers = [name for name in stats[0].__struct_fields__ if isinstance(getattr(stats[0], name), (int, float))]
    sums: dict[str, Any] = {name: sum(getattr(each, name) for each in stats) for name in numbers}
    worst = next((each for each in stats if each.state != OK), stats[0])
    error = next((each.last_error for each in (worst, *stats) if each.last_error is not None), None)
    return sums | {"state": worst.state, "last_error": error}
