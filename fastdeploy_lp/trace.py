"""Trace of one token: its distribution after each stage."""

from __future__ import annotations

from dataclasses import dataclass, field

RAN, SKIPPED, FAILED = "ran", "skipped", "failed"
MODEL, MASK, PROCESSOR, PENALTIES, SAMPLING = "model", "mask", "processor", "penalties", "sampling"


@dataclass(slots=True, frozen=True)
class TracedToken:
    """A token at one stage.

    logit: -inf if the token is excluded. probability: in the stage's distribution. rank: 1 plus the number of tokens
    with a greater logit. decoded_token: its text; `token_bytes` is exact where the text shows U+FFFD.
    """

    token_id: int
    logit: float
    probability: float
    rank: int
    decoded_token: str
    token_bytes: bytes


@dataclass(slots=True, frozen=True)
class TraceStage:
    """The distribution of one token after one stage.

    name: "raw", "guided_decoding", the declared name of a processor, "penalties" or "final".
    kind: "model", "mask", "processor", "penalties" or "sampling".
    status: "ran"; "skipped" for a processor that cannot change the most likely token while every row is greedy;
        "failed" for one that was left out of the step. A stage that did not run has no numbers.
    seconds: duration of the stage in this step, for all rows together.
    top: the most likely tokens, without excluded ones.
    sampled: the sampled token.
    entropy: of the distribution, in nats.
    mass_moved: total variation distance from the last stage that ran, 0 to 1.
    flipped: True if the most likely token has changed.
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

    token_id: None if no token was left, or if the processor failed. changed: True if it is another token.
    """

    token_id: int | None
    decoded_token: str | None
    changed: bool
    failed: bool = False


@dataclass(slots=True, frozen=True)
class TokenTrace:
    """One output token: its stages in the order in which they ran, the model's raw logits first, "final" last.

    `shadows` has the tokens that processors in shadow would have led to, by name.
    """

    token_id: int
    decoded_token: str
    token_bytes: bytes
    stages: list[TraceStage]
    shadows: dict[str, ShadowToken] = field(default_factory=dict)


@dataclass(slots=True)
class ShadowReport:
    """Counts of a completion's tokens that a shadow processor would have changed.

    tokens: tokens on which it ran. changed: tokens that it would have changed. faults: tokens on which it failed.
    """

    tokens: int = 0
    changed: int = 0
    faults: int = 0
