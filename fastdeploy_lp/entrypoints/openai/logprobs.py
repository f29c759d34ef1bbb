"""Log probabilities in the shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
from pydantic import BaseModel

from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array, encoded
from fastdeploy_lp.outputs import Logprob

# JSON has no infinity; vLLM's stand-in for a token that cannot occur.
LEAST_LOGPROB = -9999.0

Positions = Sequence[dict[int, Logprob]]
Position = dict[int, Logprob] | None


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


class NoFields(BaseModel):
    """What an object says that has nothing but long members."""


def completion_logprobs_pieces(positions: Iterable[tuple[str, Position]], text_offsets: Sequence[int]) -> Pieces:
    """`CompletionLogprobs` in pieces: a token's text and what is known at its position, None for nothing."""
    tokens, token_logprobs = list[str](), list[float | None]()

    def top() -> Iterator[Pieces]:
        for text, position in positions:
            tokens.append(text)
            token_logprobs.append(None if position is None else _finite(next(iter(position.values())).logprob))
            yield (msgspec.json.encode(None if position is None else _by_text(position)),)

    # They are encoded in this order: the first has filled the lists of the next two by then.
    members = {
        "top_logprobs": array(top()),
        "tokens": array(encoded(tokens)),
        "token_logprobs": array(encoded(token_logprobs)),
        "text_offset": array(encoded(text_offsets)),
    }
    return PiecedObject(NoFields(), members)


def named(positions: Iterable[dict[int, Logprob]]) -> Iterator[tuple[str, dict[int, Logprob]]]:
    """Each position with the text of its own token."""
    return ((next(iter(position.values())).decoded_token, position) for position in positions)


def chat_logprobs_pieces(positions: Positions, count: int, tokenizer: Tokenizer) -> Pieces:
    """`ChatLogprobs` in pieces."""
    content = ((_content_logprob(each, count, tokenizer).model_dump_json().encode(),) for each in positions)
    return PiecedObject(NoRefusal(), {"content": array(content)})


class NoRefusal(BaseModel):
    """What `ChatLogprobs` has beside its content."""

    refusal: None = None


def prompt_logprobs_pieces(positions: Iterable[Position]) -> Pieces:
    """`PromptLogprobs` in pieces."""
    return array((msgspec.json.encode(None if each is None else _finite_position(each)),) for each in positions)


def _finite_position(position: dict[int, Logprob]) -> dict[int, Logprob]:
    return {
        token: each if each.logprob >= LEAST_LOGPROB else replace(each, logprob=LEAST_LOGPROB)
        for token, each in position.items()
    }


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
