"""Arguments that are token ids or texts; a processor sees token ids."""

from __future__ import annotations

import operator
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, JsonValue, ValidationInfo, WithJsonSchema

VOCAB_SIZE = "vocab_size"
"""Key of the vocabulary's size in the validation context; without it, as in a test of `Params` alone, ids must
only be 0 or above."""

TOKEN_FORMAT: dict[str, JsonValue] = {"format": "token-id"}
"""Forms built from a schema with this format offer a search for tokens."""

TOKEN_SCHEMA: dict[str, JsonValue] = {"type": "integer", **TOKEN_FORMAT}
# The only accepted spelling of an integer; "042", " 42" and "4_2" are refused.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def integer_of(value: Any) -> int:
    """Returns `value` as an integer, also if it is text, as a JSON object's key is; raises ValueError otherwise."""
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value) is None:
            raise ValueError("must be an integer, the token's id in plain digits such as 42")
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"must be an integer, not {value!r}")
    return operator.index(value)


def in_vocabulary(token: int, info: ValidationInfo) -> int:
    """Returns `token` if the vocabulary of the validation context has it; raises ValueError otherwise."""
    vocab_size = (info.context or {}).get(VOCAB_SIZE)
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        allowed = "ids are not negative" if vocab_size is None else f"the vocabulary has {vocab_size} tokens"
        raise ValueError(f"token id out of range, {allowed}")
    return token


TokenId = Annotated[int, BeforeValidator(integer_of), AfterValidator(in_vocabulary), WithJsonSchema({**TOKEN_SCHEMA})]
"""A token id of the vocabulary; as a JSON object's key, which is always text, its plain decimal digits."""


Encode = Callable[[str], list[int]]
"""Returns the token ids of a text, without the tokens that a tokenizer adds around a whole prompt."""

PHRASES = "phrases"
MAX_TOKENS = 4096
SENTENCE_MARKS = (".", "!", "?", "…", ".\n", "\n", "\n\n", '."', ".)", "。", "！", "？")
NEIGHBOURS = (".", ",", "!", "?", ":", ";", ")", "]", "}", '"', "'", "`", "*", "-", "(", "<", ">", "\n", "\n\n", " ")
# Before a text, a mark may also follow a space, with both in one token.
OPENING = (*NEIGHBOURS, *(f" {mark}" for mark in NEIGHBOURS if mark.strip()))
REMEMBERED_MARKERS = 256
# Maximum of characters; longer markers are rare, and all forms of one would take much memory.
REMEMBERED_LENGTH = 256


class PhraseEncoder:
    """The engine's tokenizer as the arguments of this module use it."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self._markers: OrderedDict[str, list[list[int]]] = OrderedDict()

    def forms(self, text: str) -> list[list[int]]:
        """Returns the text's tokens, and its tokens after a space if these do more than add leading tokens."""
        plain, spaced = self.encode(text), self.encode(f" {text}")
        return [plain] if spaced[-len(plain) :] == plain else [plain, spaced]

    def marker(self, text: str) -> list[list[int]]:
        """Returns the shortest token lists of which one ends wherever the text ends; cached for the latest texts."""
        if len(text) > REMEMBERED_LENGTH:
            return self._marker(text)
        if text not in self._markers:
            self._markers[text] = self._marker(text)
            if len(self._markers) > REMEMBERED_MARKERS:
                self._markers.popitem(last=False)
        self._markers.move_to_end(text)
        return self._markers[text]

    def _marker(self, text: str) -> list[list[int]]:
        # Rejects a long text before it is tokenized once for every neighbour.
        plain = _not_too_long(self.encode(text))
        found = {tuple(plain): None}
        before = ["", *(mark for mark in OPENING if self._merges(self.encode(mark + text), plain, at_end=False))]
        after = ["", *(mark for mark in NEIGHBOURS if self._merges(self.encode(text + mark), plain, at_end=True))]
        for first in before:
            for last in after:
                found.setdefault(tuple(self.encode(first + text + last)))
        return [list(tokens) for tokens in found]

    @staticmethod
    def _merges(tokens: list[int], plain: list[int], *, at_end: bool) -> bool:
        return (tokens[: len(plain)] if at_end else tokens[-len(plain) :]) != plain


def _to_phrase(value: Any, info: ValidationInfo) -> Any:
    """Returns a text's tokens; checks any other value as a list of token ids."""
    if isinstance(value, str):
        return _not_too_long(_encoder(value, info).encode(value))
    return _checked(value, info)


def _to_forms(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        return [_not_too_long(tokens) for tokens in _encoder(value, info).forms(value)]
    return _checked_lists(value, info)


def _to_marker(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        return [_not_too_long(tokens) for tokens in _encoder(value, info).marker(value)]
    return _checked_lists(value, info)


def _to_sentence_ends(value: Any, info: ValidationInfo) -> Any:
    if value is False:
        return []
    if value is True:
        # Only marks that are one token of this vocabulary.
        tokenized = [_encoder("true", info).encode(mark) for mark in SENTENCE_MARKS]
        return sorted({tokens[0] for tokens in tokenized if len(tokens) == 1})
    if isinstance(value, list):
        found = [_to_phrase(entry, info)[-1] if isinstance(entry, str) else entry for entry in value]
        return _checked(found, info) if found else found
    return value


def _encoder(text: str, info: ValidationInfo) -> PhraseEncoder:
    encoder: PhraseEncoder | None = (info.context or {}).get(PHRASES)
    if not text:
        raise ValueError("an empty text; give one, or a list of token ids")
    if encoder is None:
        raise ValueError("there is no tokenizer here; give a list of token ids in place of a text")
    return encoder


def _not_too_long(tokens: list[int]) -> list[int]:
    if not tokens:
        raise ValueError("a text without tokens")
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"{len(tokens)} tokens are too many; at most {MAX_TOKENS} are allowed")
    return tokens


def _checked_lists(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, list) and value and all(isinstance(entry, list) for entry in value):
        return [_checked(entry, info) for entry in value]
    return [_checked(value, info)]


def _checked(value: Any, info: ValidationInfo) -> list[int]:
    """Returns a list of token ids of this vocabulary; raises ValueError for any other value."""
    if not isinstance(value, list):
        raise ValueError(f"must be a text or a list of token ids, not {type(value).__name__}")
    size = (info.context or {}).get(VOCAB_SIZE)
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0 or (size is not None and token >= size):
            allowed = "0 and above" if size is None else f"0 to {size - 1}"
            raise ValueError(f"{token!r} is no token id; allowed are {allowed}")
    return _not_too_long(value)


Phrase = Annotated[list[int], BeforeValidator(_to_phrase, json_schema_input_type=str | list[TokenId])]
PhraseForms = Annotated[
    list[list[int]], BeforeValidator(_to_forms, json_schema_input_type=str | list[TokenId] | list[list[TokenId]])
]
Marker = Annotated[
    list[list[int]], BeforeValidator(_to_marker, json_schema_input_type=str | list[TokenId] | list[list[TokenId]])
]
SentenceEnds = Annotated[
    list[int], BeforeValidator(_to_sentence_ends, json_schema_input_type=bool | list[str | TokenId])
]
