"""`TokenId`: the type of arguments that are token ids, validated against the model's vocabulary at admission."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, JsonValue, ValidationInfo, WithJsonSchema

VOCAB_SIZE = "vocab_size"
"""Key of the vocabulary's size in the validation context; without it, as in a test of `Params` alone, ids are only
required not to be negative."""

TOKEN_FORMAT: dict[str, JsonValue] = {"format": "token-id"}
"""Forms made from a schema with this format offer a search for tokens."""

TOKEN_SCHEMA: dict[str, JsonValue] = {"type": "integer", **TOKEN_FORMAT}
# The one spelling of an integer; "042", " 42" and "4_2" are not it.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def integer_of(value: Any) -> int:
    """The integer that `value` is, or that it spells as the key of a JSON object; raises ValueError for others."""
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value) is None:
            raise ValueError("must be an integer, the token's id in plain digits such as 42")
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"must be an integer, not {value!r}")
    return operator.index(value)


def in_vocabulary(token: int, info: ValidationInfo) -> int:
    """`token` if the vocabulary of the validation context has it; raises ValueError otherwise."""
    vocab_size = (info.context or {}).get(VOCAB_SIZE)
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        allowed = "ids are not negative" if vocab_size is None else f"the vocabulary has {vocab_size} tokens"
        raise ValueError(f"token id out of range, {allowed}")
    return token


TokenId = Annotated[int, BeforeValidator(integer_of), AfterValidator(in_vocabulary), WithJsonSchema({**TOKEN_SCHEMA})]
"""An integer of the vocabulary. As the key of a JSON object, which is always text, its plain decimal digits."""
