"""Bodies of /v1/logits_processors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.stages import Stage


class ProcessorCounters(BaseModel):
    """Counters of a logits processor since the worker started."""

    seconds: float
    rows: int
    requests: int
    faults: int
    slow_steps: int
    skipped_greedy: int
    finishes: int
    emitted: int
    rewinds: int


class ShadowCounters(BaseModel):
    """Counters in shadow mode; `state` is "quarantined" after repeated faults, until a reset."""

    tokens: int
    changed: int
    faults: int
    seconds: float
    requests: int
    state: str
    last_error: str | None


class UploadCard(BaseModel):
    """A client's upload. created: seconds since the epoch."""

    sha256: str
    bytes: int
    created: int


class ProcessorDeleted(BaseModel):
    """Body of DELETE /v1/logits_processors/{name}."""

    name: str
    object: Literal["logits_processor.deleted"] = "logits_processor.deleted"
    deleted: bool = True


class ProcessorCard(BaseModel):
    """One declared logits processor; `parameters` is the JSON Schema of its arguments, `output` of the values that it
    emits, null if unknown.

    `always_in_shadow`: the operator runs it in shadow for every request that would use it. `mandatory`: no request can
    omit it, reorder it or run it in shadow. `stage`: `logits` before penalties and temperature, `filtered` after the
    filters, `draw` for a processor that chooses the token. `upload`: set for a processor that the client has uploaded,
    whose `order` is -1: it has no place in the chain but the one in a request's list.
    """

    name: str
    object: Literal["logits_processor"] = "logits_processor"
    dialect: str
    source: str
    spec: str
    order: int
    argmax_invariant: bool | None
    parameters: dict[str, Any] | None
    output: dict[str, Any] | None
    description: str
    state: str
    last_error: str | None
    counters: ProcessorCounters
    shadow: ShadowCounters
    always_in_shadow: bool
    mandatory: bool
    stage: Stage
    upload: UploadCard | None = None


class ProcessorList(BaseModel):
    """Body of GET /v1/logits_processors, in the order of execution.

    takes_uploads: True if the client may upload processors.
    """

    object: Literal["list"] = "list"
    data: list[ProcessorCard]
    takes_uploads: bool = False
