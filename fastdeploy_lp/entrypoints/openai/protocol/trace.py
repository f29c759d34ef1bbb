"""Traces and shadow results in answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.json_pieces import Pieces, array, members
from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted
from fastdeploy_lp.request.outputs import ProcessorOutputs
from fastdeploy_lp.request.trace import ShadowReport, TokenText, TokenTrace, TracedToken, TraceStage


class TraceEntry(BaseModel):
    """A token at one stage; a `logit` of null is minus infinity: the token is excluded."""

    token_id: int
    token: str
    bytes: list[int]
    logit: float | None
    probability: float
    rank: int


class TakenBackToken(BaseModel):
    """A token that a processor took back."""

    token_id: int
    token: str
    bytes: list[int]


class TraceStageBody(BaseModel):
    """The distribution after one stage. A stage that did not run has null numbers and an empty `top`.

    A stage of the status "took_back" has the tokens that the processor took back to this place.
    """

    name: str
    kind: str
    status: str
    seconds: float
    top: list[TraceEntry]
    sampled: TraceEntry | None
    entropy: float | None
    mass_moved: float | None
    flipped: bool
    taken_back: Omitted[list[TakenBackToken]] = None


class ShadowTokenBody(BaseModel):
    """The token that would have been sampled; null if no token was left, or if the processor `failed`."""

    token_id: int | None
    token: str | None
    changed: bool
    failed: bool


class TokenTraceBody(BaseModel):
    """One output token with its stages in execution order."""

    token_id: int
    token: str
    bytes: list[int]
    stages: list[TraceStageBody]
    shadows: Omitted[dict[str, ShadowTokenBody]] = None


class ShadowCounts(BaseModel):
    """Numbers of a choice's tokens so far on which a shadow processor ran, would have changed the token, or failed."""

    tokens: int
    changed: int
    faults: int


def trace_body(trace: Sequence[TokenTrace] | None) -> list[TokenTraceBody] | None:
    """Returns the trace's body; None for an untraced request."""
    return None if trace is None else [_token_trace(each) for each in trace]


def outputs_pieces(outputs: ProcessorOutputs) -> Pieces:
    """Returns the values of processors in pieces, each encoded when it is sent."""
    named = {name: array((json.dumps(value).encode(),) for value in values) for name, values in outputs.items()}
    return members(named)


def trace_pieces(trace: Sequence[TokenTrace]) -> Pieces:
    """Returns the trace's body in pieces, each token encoded when it is sent."""
    return array((_token_trace(each).model_dump_json().encode(),) for each in trace)


def shadow_body(reports: Mapping[str, ShadowReport] | None) -> dict[str, ShadowCounts] | None:
    """Returns the counts by processor; None for a request without processors in shadow."""
    if reports is None:
        return None
    return {
        name: ShadowCounts(tokens=report.tokens, changed=report.changed, faults=report.faults)
        for name, report in reports.items()
    }


def _token_trace(trace: TokenTrace) -> TokenTraceBody:
    shadows = {
        name: ShadowTokenBody(
            token_id=each.token_id, token=each.decoded_token, changed=each.changed, failed=each.failed
        )
        for name, each in trace.shadows.items()
    }
    return TokenTraceBody(
        token_id=trace.token_id,
        token=trace.decoded_token,
        bytes=list(trace.token_bytes),
        stages=[_stage(stage) for stage in trace.stages],
        shadows=shadows or None,
    )


def _stage(stage: TraceStage) -> TraceStageBody:
    return TraceStageBody(
        name=stage.name,
        kind=stage.kind,
        status=stage.status,
        seconds=stage.seconds,
        top=[_entry(token) for token in stage.top],
        sampled=None if stage.sampled is None else _entry(stage.sampled),
        entropy=stage.entropy,
        mass_moved=stage.mass_moved,
        flipped=stage.flipped,
        taken_back=[_taken_back(token) for token in stage.taken_back] or None,
    )


def _taken_back(token: TokenText) -> TakenBackToken:
    return TakenBackToken(token_id=token.token_id, token=token.decoded_token, bytes=list(token.token_bytes))


def _entry(token: TracedToken) -> TraceEntry:
    return TraceEntry(
        token_id=token.token_id,
        token=token.decoded_token,
        bytes=list(token.token_bytes),
        logit=token.logit if math.isfinite(token.logit) else None,
        probability=token.probability,
        rank=token.rank,
    )
