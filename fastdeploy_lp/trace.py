"""Trace of one token: its distribution after each stage."""

from __future__ import annotations

from dataclasses import dataclass, field

RAN, SKIPPED, FAILED = "ran", "skipped", "failed"
MODEL, MASK, PROCESSOR, PENALTIES, SAMPLING = "model", "mask", "processor", "penalties", "sampling"


@dataclass(slots=True, frozen=True)
class TracedToken:
    """A token with what a stage made of it.

    logit: -inf if it is ruled out. probability: its share of the stage's distribution. rank: 1 plus the number of
    tokens with a greater logit. decoded_token: what it reads as; token_bytes are exact where that shows U+FFFD.
    """

    token_id: int
    logit: float
    probability: float
    rank: int
    decoded_token: str
    token_bytes: bytes


@dataclass(slots=True, frozen=True)
class TraceStage:
    """The distribution of one token behind one stage.

    name: "raw", "guided_decoding", the declared name of a processor, "penalties" or "final".
    kind: "model", "mask", "processor", "penalties" or "sampling".
    status: "ran"; "skipped" for a processor that can not change the most likely token while every row is greedy;
        "failed" for one that was left out of the step. Such a stage has no numbers: they are those of the stage before.
    seconds: what the stage took in this step, for all rows together.
    top: the most likely tokens, without those that are ruled out.
    sampled: the token that was sampled in the end.
    entropy: of the distribution, in nats.
    mass_moved: total variation distance from the last stage that ran, 0 to 1.
    flipped: whether another token is the most likely one than before.
    """

    name: str
    kind: str
    status: str = RAN
    seconds: float = 0.0
    top: list[TracedToken] = field(default_factory=list)
    sampled: TracedToken | None = None
    entropy: float | None = None
    mass_moved: float | None = None
    flipped: bool = False


@dataclass(slots=True, frozen=True)
class ShadowToken:
    """The token that a shadow processor in the chain would have led to.

    token_id: None if it would have left none, or if it failed. changed: whether that is another token.
    """

    token_id: int | None
    decoded_token: str | None
    changed: bool
    failed: bool = False


@dataclass(slots=True, frozen=True)
class TokenTrace:
    """One output token: its stages in the order in which they ran, the model's raw logits first, "final" last.

    `shadows` has what processors in shadow would have made of it, by name.
    """

    token_id: int
    decoded_token: str
    token_bytes: bytes
    stages: list[TraceStage]
    shadows: dict[str, ShadowToken] = field(default_factory=dict)


@dataclass(slots=True)
class ShadowReport:
    """Counts of a completion's tokens that a shadow processor would have changed.

    tokens: those that it was tried on. changed: those that would have been others. faults: those on which it failed.
    """

    tokens: int = 0
    changed: int = 0
    faults: int = 0
