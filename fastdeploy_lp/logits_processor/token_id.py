"""`TokenId`: the type of arguments that are token ids, validated against the model's vocabulary at admission."""

from __future__ import annotations

import operator
import re
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
