"""Traces of tokens from the worker, with the text of their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import ShadowTokens, StageNumbers, StageTrace
from fastdeploy_lp.trace import ShadowReport, ShadowToken, TokenTrace, TracedToken, TraceStage

NO_TOKEN = -1


def spelled_trace(
    token_id: int, stages: Sequence[StageTrace], shadows: ShadowTokens | None, tokenizer: Tokenizer
) -> TokenTrace:
    """Returns the worker's trace of one sampled token in the form sent to the caller."""
    told: list[TraceStage] = []
    before: StageNumbers | None = None
    for stage in stages:
        told.append(_stage(token_id, stage, before, tokenizer))
        before = stage.numbers or before
    return TokenTrace(
        token_id=token_id,
        decoded_token=tokenizer.token_text(token_id),
        token_bytes=tokenizer.token_bytes(token_id),
        stages=told,
        shadows={name: _shadow(token_id, other, tokenizer) for name, other in (shadows or {}).items()},
    )


def count_shadows(reports: dict[str, ShadowReport], token_id: int, shadows: Mapping[str, int | None]) -> None:
    """Adds the effect that processors in shadow would have had on one token to a completion's counts."""
    for name, other in shadows.items():
        report = reports.setdefault(name, ShadowReport())
        if other is None:
            report.faults += 1
        else:
            report.tokens += 1
            report.changed += other != token_id


def _stage(token_id: int, stage: StageTrace, before: StageNumbers | None, tokenizer: Tokenizer) -> TraceStage:
    numbers = stage.numbers
    if numbers is None:
        return TraceStage(stage.name, stage.kind, stage.status, stage.seconds)
    top = []
    rank = 1
    for place, (token, logit) in enumerate(zip(numbers.token_ids, numbers.logits, strict=True)):
        if place and logit < numbers.logits[place - 1]:
            rank = place + 1
        top.append(_token(token, logit, rank, numbers.log_sum, tokenizer))
    return TraceStage(
        name=stage.name,
        kind=stage.kind,
        status=stage.status,
        seconds=stage.seconds,
        top=top,
        sampled=_token(token_id, numbers.logit, numbers.rank, numbers.log_sum, tokenizer),
        entropy=numbers.entropy,
        mass_moved=numbers.moved,
        flipped=before is not None and before.most_likely != numbers.most_likely,
    )


def _token(token_id: int, logit: float, rank: int, log_sum: float, tokenizer: Tokenizer) -> TracedToken:
    text, content = tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)
    return TracedToken(token_id, logit, math.exp(logit - log_sum), rank, text, content)


def _shadow(token_id: int, other: int | None, tokenizer: Tokenizer) -> ShadowToken:
    if other is None:
        return ShadowToken(None, None, changed=False, failed=True)
    if other == NO_TOKEN:
        return ShadowToken(None, None, changed=True)
    return ShadowToken(other, tokenizer.token_text(other), changed=other != token_id)
