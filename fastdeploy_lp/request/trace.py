"""Traces: their parameters, and the distribution of one token after each stage."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

MAX_TRACE_TOP_K = 20
DEFAULT_TRACE_TOP_K = 8


class TraceParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Extent of a request's trace, which shows how each token was chosen from the model's logits.

    top_k: number of most likely tokens reported at each stage, 1 to 20.
    max_tokens: number of traced tokens of each completion, from the first, 1 or more. None traces all tokens of the
        request, or the server's limit if the request has no length limit.

    Raises ValueError naming the field.
    """

    top_k: int = DEFAULT_TRACE_TOP_K
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _require("top_k", self.top_k, MAX_TRACE_TOP_K)
        if self.max_tokens is not None:
            _require("max_tokens", self.max_tokens, None)

    @classmethod
    def of(cls, given: object) -> TraceParams | None:
        """Converts a value of `logits_processors_trace`: True, False, None, a dict of the fields, or an instance."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, dict):
            for name in given:
                if name not in cls.__struct_fields__:
                    raise ValueError(f"logits_processors_trace.{name}: is unknown here; known are top_k and max_tokens")
            return cls(**given)
        if not isinstance(given, cls):
            raise ValueError(f"logits_processors_trace: must be true or an object, not {given!r}")
        return given


def _require(name: str, value: object, most: int | None) -> None:
    allowed = "an integer of at least 1" if most is None else f"an integer from 1 to {most}"
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise ValueError(f"logits_processors_trace.{name}: must be {allowed}, not {value!r}")


RAN, SKIPPED, FAILED, TOOK_BACK = "ran", "skipped", "failed", "took_back"
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
class TokenText:
    """A token; `token_bytes` is exact where the text shows U+FFFD."""

    token_id: int
    decoded_token: str
    token_bytes: bytes


@dataclass(slots=True, frozen=True)
class TraceStage:
    """The distribution of one token after one stage.

    name: "raw", "guided_decoding", the declared name of a processor, "penalties" or "final".
    kind: "model", "mask", "processor", "penalties" or "sampling".
    status: "ran"; "skipped" for a processor that cannot change the most likely token while every row is greedy;
        "failed" for one that was left out of the step; "took_back" for one that took tokens back to this place, before
        the step. Only a stage that ran has numbers.
    taken_back: the tokens that it took back, which the client has not received otherwise.
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
    taken_back: list[TokenText] = field(default_factory=list)


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
