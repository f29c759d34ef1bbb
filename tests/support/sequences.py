"""Requests and sequences for tests that drive the worker's parts directly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, SequenceStep, TokenLogprobs
from fastdeploy_lp.request.pooling_params import TOKEN_EMBED, TOKEN_POOLING, PoolingParams
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence
from support.tiny import tiny_fd_config


def request(request_id: str, prompt: Sequence[int], **params: Any) -> AddRequest:
    """A greedy request unless `params`, the fields of SamplingParams, say otherwise.

    `logits_processors_args` and `selection` become what the API process would send for them; `client` sends it.
    """
    client = params.pop("client", "")
    flat = params.pop("logits_processors_args", None) or {}
    selection = params.pop("selection", None) or Selection(flat=flat)
    sampling = SamplingParams(**{"temperature": 0.0, **params})
    return AddRequest(request_id, list(prompt), sampling, selection, client=client)


def pooling(request_id: str, prompt: Sequence[int], kind: str = "mean") -> AddRequest:
    """A request for a prompt's pooled hidden states."""
    params = PoolingParams(task=TOKEN_EMBED) if kind == TOKEN_POOLING else PoolingParams(pooling=kind)
    return AddRequest(request_id, list(prompt), pooling=params)


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
    pooled: bytes | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, step: SequenceStep) -> None:
        assert step.error is None
        assert self.finish_reason is None
        self.token_ids += step.token_ids
        self.logprobs += step.logprobs or []
        self.finish_reason, self.stop_reason = step.finish_reason, step.stop_reason
        self.pooled = step.pooled

    @property
    def vector(self) -> NDArray[np.float32]:
        """What a prompt was pooled to, [hidden_size], or [tokens * hidden_size]."""
        assert self.pooled is not None
        return np.frombuffer(self.pooled, "<f4")


def chain_of(processors: Iterable[str | type], fd_config: FDConfig) -> LogitsProcessorChain:
    """A chain of SPECs and classes, in that order."""
    specs = [each if isinstance(each, str) else spec_of(each) for each in processors]
    objects = {spec_of(each): each for each in processors if not isinstance(each, str)}
    return LogitsProcessorChain(load_processors(specs, objects), fd_config)


def tiny_engine(processors: Iterable[str | type] = (), **config: Any) -> EngineCore:
    """An engine on a tiny model; `config` is what `tiny_fd_config` takes."""
    fd_config = tiny_fd_config(**config)
    return EngineCore(fd_config, chain_of(list(processors), fd_config))


def run_to_end(engine: EngineCore, requests: Iterable[AddRequest] = ()) -> dict[str, Ran]:
    """Add the requests and step until nothing is left to do."""
    ran: dict[str, Ran] = {}
    for added in requests:
        engine.add(added)
    assert engine.finish_preparing() == []
    while engine.has_work:
        for step in engine.step().steps:
            ran.setdefault(step.request_id, Ran()).take(step)
    return ran
