"""Log probabilities in the shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
from pydantic import BaseModel

from fastdeploy_lp.engine.tokenizer import Tokenizer, id_as_text
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array, encoded
from fastdeploy_lp.request.outputs import Logprob

# JSON has no infinity; vLLM's value for a token that cannot occur.
LEAST_LOGPROB = -9999.0

Position = dict[int, Logprob] | None
Positions = Iterable[dict[int, Logprob]]


class TopLogprob(BaseModel):
    """One of the most likely tokens; `bytes` are exact where `token` shows incomplete characters as U+FFFD."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """One output token of a chat."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """`choices[].logprobs` of chat completions, one entry per output token; `refusal` is part of OpenAI's schema."""

    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """`choices[].logprobs` of text completions; all four lists have one entry per token of `text`.

    The first token of an echoed prompt has no prediction: its logprobs are null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def followed_by(self, other: CompletionLogprobs) -> CompletionLogprobs:
        """Returns both together, with unchanged offsets."""
        return CompletionLogprobs(
            tokens=self.tokens + other.tokens,
            token_logprobs=self.token_logprobs + other.token_logprobs,
            top_logprobs=self.top_logprobs + other.top_logprobs,
            text_offset=self.text_offset + other.text_offset,
        )


class PromptLogprob(BaseModel):
    """One token of `prompt_logprobs` at one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


def shown(positions: Positions, *, by_id: bool | None) -> Positions:
    """Returns the positions; with `by_id`, each token has its id in place of its text."""
    return map(with_ids, positions) if by_id else positions


def with_ids(position: dict[int, Logprob]) -> dict[int, Logprob]:
    """Returns a position with each token's id in place of its text."""
    return {token: replace(each, decoded_token=id_as_text(token)) for token, each in position.items()}


def chat_logprobs(positions: Positions, count: int, tokenizer: Tokenizer) -> ChatLogprobs:
    """Returns the `count` most likely tokens at each position."""
    return ChatLogprobs(content=[_content_logprob(position, count, tokenizer) for position in positions])


def completion_logprobs(positions: Positions, text_offsets: Sequence[int]) -> CompletionLogprobs:
    """Returns all requested tokens and the chosen one at each position."""
    listed = list(positions)
    chosen = [next(iter(position.values())) for position in listed]
    return CompletionLogprobs(
        tokens=[logprob.decoded_token for logprob in chosen],
        token_logprobs=[_finite(logprob.logprob) for logprob in chosen],
        top_logprobs=[_by_text(position) for position in listed],
        text_offset=list(text_offsets),
    )


class NoFields(BaseModel):
    """Model of an object that has only long members."""


def completion_logprobs_pieces(positions: Iterable[tuple[str, Position]], text_offsets: Sequence[int]) -> Pieces:
    """Returns `CompletionLogprobs` in pieces; positions: each token's text and its logprobs, None if unknown."""
    tokens, token_logprobs = list[str](), list[float | None]()

    def top() -> Iterator[Pieces]:
        for text, position in positions:
            tokens.append(text)
            token_logprobs.append(None if position is None else _finite(next(iter(position.values())).logprob))
            yield (msgspec.json.encode(None if position is None else _by_text(position)),)

    # Members are encoded in this order: the first one fills the lists of the next two.
    members = {
        "top_logprobs": array(top()),
        "tokens": array(encoded(tokens)),
        "token_logprobs": array(encoded(token_logprobs)),
        "text_offset": array(encoded(text_offsets)),
    }
    return PiecedObject(NoFields(), members)


def named(positions: Iterable[dict[int, Logprob]]) -> Iterator[tuple[str, dict[int, Logprob]]]:
    """Returns each position with the text of its chosen token."""
    return ((next(iter(position.values())).decoded_token, position) for position in positions)


def chat_logprobs_pieces(positions: Positions, count: int, tokenizer: Tokenizer) -> Pieces:
    """Returns `ChatLogprobs` in pieces."""
    return PiecedObject(NoRefusal(), {"content": content_logprobs_pieces(positions, count, tokenizer)})


def content_logprobs_pieces(positions: Positions, count: int, tokenizer: Tokenizer) -> Pieces:
    """Returns a list of `ContentLogprob` in pieces."""
    return array((_content_logprob(each, count, tokenizer).model_dump_json().encode(),) for each in positions)


class NoRefusal(BaseModel):
    """Fields of `ChatLogprobs` other than its content."""

    refusal: None = None


def prompt_logprobs_pieces(positions: Iterable[Position]) -> Pieces:
    """Returns `PromptLogprobs` in pieces."""
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
    """Returns logprobs by text; of several tokens with the same text, the most likely one."""
    texts: dict[str, float] = {}
    for each in sorted(position.values(), key=lambda logprob: -logprob.logprob):
        texts.setdefault(each.decoded_token, _finite(each.logprob))
    return texts


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
