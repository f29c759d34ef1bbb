"""What the steps of a worker report of each request, actions included."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.messages import AddRequest, TokenLogprobs
from fastdeploy_lp.worker.engine_core import EngineCore


@dataclass
class Seen:
    """What the steps of one request said."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None
    error: str | None = None
    values: list[tuple[int, str, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


def run(engine: EngineCore, requests: list[AddRequest]) -> dict[str, Seen]:
    seen = {each.request_id: Seen() for each in requests}
    for each in requests:
        engine.add(each)
    engine.finish_preparing()
    while engine.has_work:
        for step in engine.step().steps:
            found = seen[step.request_id]
            assert found.finish_reason is None
            assert found.error is None
            found.values += [(len(found.tokens), name, json.loads(value)) for name, value in step.emitted or ()]
            found.tokens += step.token_ids
            found.logprobs += step.logprobs or []
            found.finish_reason, found.stop_reason, found.error = step.finish_reason, step.stop_reason, step.error
    return seen
