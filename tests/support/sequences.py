"""Requests and sequences for tests that drive the worker's parts directly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.messages import AddRequest, SequenceStep
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence
from support.tiny import tiny_fd_config


def request(request_id: str, prompt: Sequence[int], **params: Any) -> AddRequest:
    """A greedy request unless `params`, the fields of SamplingParams, say otherwise."""
    return AddRequest(request_id, list(prompt), SamplingParams(**{"temperature": 0.0, **params}))


def sequence(
    prompt: Sequence[int],
    *,
    request_id: str = "request",
    slot: int = -1,
    output: Sequence[int] = (),
    max_model_len: int = 64,
    **params: Any,
) -> WorkerSequence:
    """A sequence that has already generated `output`."""
    made = WorkerSequence.from_request(request(request_id, prompt, **params), (), max_model_len)
    made.slot = slot
    made.output_token_ids = list(output)
    return made


@dataclass
class Ran:
    """What became of one request."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None

    def take(self, step: SequenceStep) -> None:
        assert step.error is None
        assert self.finish_reason is None
        self.token_ids += step.token_ids
        self.finish_reason, self.stop_reason = step.finish_reason, step.stop_reason


def tiny_engine(processors: Iterable[Any] = (), **config: Any) -> EngineCore:
    """An engine on a tiny model; `config` is what `tiny_fd_config` takes."""
    return EngineCore(tiny_fd_config(**config), LogitsProcessorChain(list(processors)))


def run_to_end(engine: EngineCore, requests: Iterable[AddRequest] = ()) -> dict[str, Ran]:
    """Add the requests and step until nothing is left to do."""
    ran: dict[str, Ran] = {}
    for added in requests:
        engine.add(added)
    while engine.has_work:
        for step in engine.step().steps:
            ran.setdefault(step.request_id, Ran()).take(step)
    return ran
