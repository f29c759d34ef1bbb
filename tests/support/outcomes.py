"""An engine with processors under test between LogitBias and a recorder, and what became of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore
from support.recording import After, Rows, forget
from support.sequences import request
from support.tiny import tiny_fd_config

NUM_REQUESTS = 32


@dataclass
class Outcome:
    """What became of every request, and the logits that the last processor saw."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unavailable: set[str] = field(default_factory=set)
    rows: Rows = field(default_factory=dict)

    def step(self, engine: EngineCore) -> None:
        for step in engine.step().steps:
            assert step.request_id not in self.errors
            self.tokens.setdefault(step.request_id, []).extend(step.token_ids)
            if step.error is not None:
                assert step.token_ids == []
                self.errors[step.request_id] = step.error
            if step.unavailable:
                self.unavailable.add(step.request_id)


def run(engine: EngineCore, *requests: AddRequest) -> Outcome:
    forget()
    outcome = Outcome()
    for made in requests:
        engine.add(made)
    assert engine.finish_preparing() == []
    while engine.has_work:
        outcome.step(engine)
    outcome.rows = dict(After.rows)
    return outcome


def engine_with(*found: Any, max_num_seqs: int = NUM_REQUESTS, **policy: Any) -> EngineCore:
    """LogitBias, what is under test, and a recorder."""
    objects: dict[str, object] = {f"m:{index}": each for index, each in enumerate(found)}
    config = tiny_fd_config(max_num_seqs=max_num_seqs, policy=StructuredOutputsConfig(**policy))
    specs = ["LogitBiasLogitsProcessor", *objects, spec_of(After)]
    declared = load_processors(specs, {**objects, spec_of(After): After}, mandatory=policy.get("mandatory", ()))
    return EngineCore(config, LogitsProcessorChain(declared, config))


def naming(**params: dict[str, Any]) -> Selection:
    return Selection(named={**params, "After": {}})


def using(name: str, request_id: str = "r", max_tokens: int = 3) -> AddRequest:
    return request(request_id, [1, 2, 3], max_tokens=max_tokens, selection=naming(**{name: {"x": 1}}))
