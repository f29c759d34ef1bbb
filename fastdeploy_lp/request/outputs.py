"""Outputs that a running or finished request returns to its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict, TypeVar

from fastdeploy_lp.request.trace import ShadowReport, TokenTrace


@dataclass(slots=True, frozen=True)
class Logprob:
    """Log probability of one token at one position.

    logprob: natural logarithm of its probability, or its logit, as `--logprobs-mode` says. rank: 1 for a most likely
    token. decoded_token: its text.
    """

    logprob: float
    rank: int
    decoded_token: str


class ProcessorStop(TypedDict):
    """Stop reason of a completion that a logits processor has ended: the processor's name, and its reason."""

    processor: str
    reason: str


StopCause = int | str | ProcessorStop
"""A token of `stop_token_ids`, a stop string, or the end that a logits processor has set."""

ProcessorOutputs = dict[str, list[Any]]
"""JSON values that logits processors have emitted, by the processor's name."""


def joined_outputs(first: ProcessorOutputs | None, then: ProcessorOutputs | None) -> ProcessorOutputs | None:
    """Returns the values of both; None without any."""
    if first is None or then is None:
        return then if first is None else first
    return {name: [*first.get(name, ()), *then.get(name, ())] for name in dict.fromkeys((*first, *then))}


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's `n` completions.

    `token_ids` holds the sampled tokens, a final end-of-sequence token included; `text` leaves special tokens and the
    stop string out. `finish_reason` is "stop", "length" or "abort", None while running.

    With `SamplingParams.logprobs`: `logprobs` has one dict an output token, by token id, the sampled one first;
    `cumulative_logprob` sums the sampled ones; `text_offsets` says where in `text` each token begins.
    With `SamplingParams.logits_processors_trace`: `logits_processors_trace` has one entry for each of the first output
    tokens, all of them unless a limit says otherwise. With processors in shadow: `logits_processors_shadow` by name.
    With processors that emit values: `logits_processors_outputs` has each one's values in order, by its name.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: StopCause | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    text_offsets: list[int] = field(default_factory=list)
    logits_processors_trace: list[TokenTrace] | None = None
    logits_processors_shadow: dict[str, ShadowReport] | None = None
    logits_processors_outputs: ProcessorOutputs | None = None

    def extend(self, delta: CompletionDelta) -> None:
        """Appends a delta's text, tokens and logprobs, and takes over its finish reason."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.logprobs is not None:
            # A whole answer is one delta; its positions are kept as they are, without decoding them here.
            self.logprobs = [*self.logprobs, *delta.logprobs] if self.logprobs else delta.logprobs
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + delta.gained_logprob
            self.text_offsets += delta.text_offsets
        if delta.logits_processors_trace is not None:
            self.logits_processors_trace = (self.logits_processors_trace or []) + delta.logits_processors_trace
        if delta.logits_processors_shadow is not None:
            self.logits_processors_shadow = delta.logits_processors_shadow
        self.logits_processors_outputs = joined_outputs(self.logits_processors_outputs, delta.logits_processors_outputs)

    def snapshot(self) -> CompletionOutput:
        """Returns a copy that later deltas do not change."""
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
    """Timestamps of a request, in seconds since 1970; their differences follow a monotonic clock.

    `first_token_time` is None before the first token, `finished_time` before the request finishes.
    """

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """Draft tokens that were verified for a request, and the verified ones that became its output."""

    verified: int = 0
    accepted: int = 0

    def __add__(self, other: DraftedTokens) -> DraftedTokens:
        return DraftedTokens(self.verified + other.verified, self.accepted + other.accepted)


NO_DRAFTS = DraftedTokens()


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt; `outputs` is the first completion, `completions` holds all `n` of them.

    `prompt_index` is the prompt's place among the prompts of one call of `LLM.generate` or `LLM.chat`.
    `num_cached_tokens` of the prompt's tokens were found in the prefix cache and not computed for this request.
    With `SamplingParams.prompt_logprobs`, `prompt_logprobs` has one dict a prompt token, by token id, the prompt's own
    first; None at the first token, which nothing predicts.
    `drafted` counts the draft tokens of a server with `speculative_config`.
    A request that failed has an `error_msg` and an HTTP status other than 200 as its `error_code`.
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
    """New text and tokens of a completion since its last delta; the last delta has the finish and stop reasons.

    With requested logprobs, `logprobs` and `text_offsets` have one entry for each of `token_ids`, and `gained_logprob`
    is the sum of the sampled tokens' logprobs. `logits_processors_trace` has one entry for each traced token.
    `logits_processors_shadow` counts from the completion's first token.
    `logits_processors_outputs` has the values that processors emitted with `token_ids`, and with the end.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: StopCause | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    gained_logprob: float = 0.0
    text_offsets: list[int] = field(default_factory=list)
    logits_processors_trace: list[TokenTrace] | None = None
    logits_processors_shadow: dict[str, ShadowReport] | None = None
    logits_processors_outputs: ProcessorOutputs | None = None

    @property
    def is_text(self) -> bool:
        """True if it has only text and token ids, perhaps with a trace."""
        return self.finish_reason is None and self.logprobs is None and self.logits_processors_outputs is None


@dataclass(slots=True)
class PoolingOutput:
    """Pooled hidden states of a prompt. `data`: float32 [dimensions], or [tokens, dimensions] with one row a token."""

    data: NDArray[np.float32]


# Type of a pooled answer: `PoolingOutput`, or the type that an IO processor returns for its request.
Pooled = TypeVar("Pooled", default=PoolingOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """The answer to one prompt that was pooled; `num_cached_tokens` of its tokens were found in the prefix cache.

    For data that an IO processor turned into prompts, `outputs` is the processor's answer, and there are no token ids.
    """

    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class EmbeddingOutput:
    """Embedding of one prompt. `embedding`: `hidden_size` float32 numbers, or the requested number of `dimensions`."""

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
        """Returns the same answer with its numbers in a list."""
        embedding = EmbeddingOutput(pooled.outputs.data.tolist())
        return cls(pooled.request_id, embedding, pooled.prompt_token_ids, pooled.num_cached_tokens, pooled.finished)
