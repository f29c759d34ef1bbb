"""Log probabilities in the shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.outputs import Logprob

# JSON has no infinity; vLLM's stand-in for a token that cannot occur.
LEAST_LOGPROB = -9999.0

Positions = Sequence[dict[int, Logprob]]


class TopLogprob(BaseModel):
    """One of the most likely tokens; `bytes` are exact where `token` shows incomplete characters as U+FFFD."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """One output token of a chat."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """`choices[].logprobs` of chat completions, one entry an output token; OpenAI's schema has refusals beside them."""

    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """`choices[].logprobs` of text completions; all four lists have one entry a token of `text`.

    Nothing predicts the first token of an echoed prompt: its logprobs are null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def followed_by(self, other: CompletionLogprobs) -> CompletionLogprobs:
        """Both together; offsets are taken as they are."""
        return CompletionLogprobs(
            tokens=self.tokens + other.tokens,
            token_logprobs=self.token_logprobs + other.token_logprobs,
            top_logprobs=self.top_logprobs + other.top_logprobs,
            text_offset=self.text_offset + other.text_offset,
        )


class PromptLogprob(BaseModel):
    """What `prompt_logprobs` says of a token at one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


def chat_logprobs(positions: Positions | None, count: int, tokenizer: Tokenizer) -> ChatLogprobs | None:
    """With the `count` most likely tokens at each position; None if logprobs were not asked for."""
    if positions is None:
        return None
    return ChatLogprobs(content=[_content_logprob(position, count, tokenizer) for position in positions])


def completion_logprobs(positions: Positions | None, text_offsets: Sequence[int]) -> CompletionLogprobs | None:
    """With all tokens that were asked for at each position, and the chosen one; None if logprobs were not asked for."""
    if positions is None:
        return None
    chosen = [next(iter(position.values())) for position in positions]
    return CompletionLogprobs(
        tokens=[logprob.decoded_token for logprob in chosen],
        token_logprobs=[_finite(logprob.logprob) for logprob in chosen],
        top_logprobs=[_by_text(position) for position in positions],
        text_offset=list(text_offsets),
    )


def prompt_logprobs(positions: Sequence[dict[int, Logprob] | None] | None) -> PromptLogprobs | None:
    """By token id at each position, None at the first."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            token: PromptLogprob(logprob=_finite(each.logprob), rank=each.rank, decoded_token=each.decoded_token)
            for token, each in position.items()
        }
        for position in positions
    ]


def _content_logprob(position: dict[int, Logprob], count: int, tokenizer: Tokenizer) -> ContentLogprob:
    ranked = sorted(position.items(), key=lambda item: -item[1].logprob)[:count]
    top = [_top_logprob(token, logprob, tokenizer) for token, logprob in ranked]
    chosen = _top_logprob(*next(iter(position.items())), tokenizer)
    return ContentLogprob(**vars(chosen), top_logprobs=top)


def _top_logprob(token: int, logprob: Logprob, tokenizer: Tokenizer) -> TopLogprob:
    content = tokenizer.token_bytes(token)
    return TopLogprob(token=logprob.decoded_token, logprob=_finite(logprob.logprob), bytes=list(content))


def _by_text(position: dict[int, Logprob]) -> dict[str, float]:
    """Several tokens may read the same; the most likely of them is shown."""
    texts: dict[str, float] = {}
    for each in sorted(position.values(), key=lambda logprob: -logprob.logprob):
        texts.setdefault(each.decoded_token, _finite(each.logprob))
    return texts


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
