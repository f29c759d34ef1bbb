"""Outputs that a running or finished request returns to its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from fastdeploy_lp.request.trace import ShadowReport, TokenTrace


@dataclass(slots=True, frozen=True)
class Logprob:
    """Log probability of one token at one position.

    logprob: natural logarithm of its probability, or its logit, as `--logprobs-mode` says. rank: 1 for a most likely
    token. decoded_token: what it reads as.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's `n` completions.

    `token_ids` holds the sampled tokens, a final end-of-sequence token included; `text` leaves special tokens and the
    stop string out. `finish_reason` is "stop", "length" or "abort", None while running.

    With `SamplingParams.logprobs`: `logprobs` has one dict an output token, by token id, the sampled one first;
    `cumulative_logprob` sums the sampled ones; `text_offsets` says where in `text` each token begins.
    With `SamplingParams.logits_processors_trace`: `logits_processors_trace` has one entry for each of the first output
    tokens, all of them unless a limit says otherwise. With processors in shadow: `logits_processors_shadow` by name.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    text_offsets: list[int] = field(default_factory=list)
    logits_processors_trace: list[TokenTrace] | None = None
    logits_processors_shadow: dict[str, ShadowReport] | None = None

    def extend(self, delta: CompletionDelta) -> None:
        """Take what is new."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.logprobs is not None:
            # A whole answer comes as one delta, whose positions nobody has to read here.
            self.logprobs = [*self.logprobs, *delta.logprobs] if self.logprobs else delta.logprobs
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + delta.gained_logprob
            self.text_offsets += delta.text_offsets
        if delta.logits_processors_trace is not None:
            self.logits_processors_trace = (self.logits_processors_trace or []) + delta.logits_processors_trace
        if delta.logits_processors_shadow is not None:
            self.logits_processors_shadow = delta.logits_processors_shadow

    def snapshot(self) -> CompletionOutput:
        """A copy that does not grow with this one."""
        logprobs = list(self.logprobs) if isinstance(self.logprobs, list) else self.logprobs
        trace = None if self.logits_processors_trace is None else list(self.logits_processors_trace)
        return replace(
            self,
            token_ids=list(self.token_ids),
            logprobs=logprobs,
            text_offsets=list(self.text_offsets),
            logits_processors_trace=trace,
        )


@dataclass(slots=True, frozen=True)
class RequestMetrics:
    """When things happened to a request, in seconds since 1970; differences between them follow a monotonic clock.

    `first_token_time` and `finished_time` are None as long as that has not happened.
    """

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """Draft tokens that were verified for a request, and those of them that are its output."""

    verified: int = 0
    accepted: int = 0

    def __add__(self, other: DraftedTokens) -> DraftedTokens:
        return DraftedTokens(self.verified + other.verified, self.accepted + other.accepted)


NO_DRAFTS = DraftedTokens()


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt; `outputs` is the first completion, `completions` holds all `n` of them.

    `prompt_index` is the prompt's place among those of one call of `LLM.generate` or `LLM.chat`.
    `num_cached_tokens` of the prompt's tokens were found in the prefix cache and not computed for this request.
    With `SamplingParams.prompt_logprobs`, `prompt_logprobs` has one dict a prompt token, by token id, the prompt's own
    first; None at the first token, which nothing predicts.
    `drafted` counts the draft tokens of a server with `speculative_config`.
    A request that could not go on has an `error_msg` and an HTTP status other than 200 as its `error_code`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: Sequence[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    prompt_index: int = 0
    error_code: int = 200
    error_msg: str | None = None
    drafted: DraftedTokens = NO_DRAFTS

    @property
    def outputs(self) -> CompletionOutput:
        """The first completion, as upstream names it."""
        return self.completions[0]


@dataclass(slots=True)
class CompletionDelta:
    """What a completion gained since its last delta; a finishing delta carries the reasons.

    `logprobs` and `text_offsets` have one entry for each of `token_ids`, when logprobs were asked for, whose sum is
    `gained_logprob`, and
    `logits_processors_trace` one for each that is traced. `logits_processors_shadow` counts from the first token on.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    gained_logprob: float = 0.0
    text_offsets: list[int] = field(default_factory=list)
    logits_processors_trace: list[TokenTrace] | None = None
    logits_processors_shadow: dict[str, ShadowReport] | None = None


@dataclass(slots=True)
class PoolingOutput:
    """`data` is what a prompt's hidden states came to: float32 [dimensions], or [tokens, dimensions] for each token."""

    data: NDArray[np.float32]


# What stands for a request's prompts: of an IO processor's request, whatever that makes of them.
Pooled = TypeVar("Pooled", default=PoolingOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """The answer to one prompt that was pooled; `num_cached_tokens` of its tokens were found in the prefix cache.

    Of data that an IO processor turned into prompts, `outputs` is the processor's answer, and there are no token ids.
    """

    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class EmbeddingOutput:
    """`embedding` holds `hidden_size` numbers, or as many as `dimensions` asked for; each is a float32."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Number of elements, under vLLM's name."""
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt; `num_cached_tokens` of its tokens were found in the prefix cache."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True

    @classmethod
    def of(cls, pooled: PoolingRequestOutput) -> EmbeddingRequestOutput:
        """The same answer with its numbers in a list."""
        embedding = EmbeddingOutput(pooled.outputs.data.tolist())
        return cls(pooled.request_id, embedding, pooled.prompt_token_ids, pooled.num_cached_tokens, pooled.finished)
