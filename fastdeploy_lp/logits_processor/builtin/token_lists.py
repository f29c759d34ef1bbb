"""Types of arguments that are token ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from fastdeploy_lp.logits_processor.token_arguments import TOKEN_SCHEMA, in_vocabulary

MAX_SEQUENCES = 4096
MAX_SEQUENCE_LENGTH = 1024

# Only JSON keys must be strings: in a list, a token id in quotes is a mistake.
ListedToken = Annotated[int, Field(strict=True), AfterValidator(in_vocabulary), WithJsonSchema({**TOKEN_SCHEMA})]
TokenSet = Annotated[list[ListedToken], Field(min_length=1)]
TokenSequence = Annotated[list[ListedToken], Field(min_length=1, max_length=MAX_SEQUENCE_LENGTH)]
