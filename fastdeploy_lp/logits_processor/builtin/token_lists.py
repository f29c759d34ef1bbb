"""The types of arguments that are token ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fastdeploy_lp.logits_processor.builtin.logit_bias import TokenId

MAX_SEQUENCES = 4096
MAX_SEQUENCE_LENGTH = 1024

ListedToken = Annotated[TokenId, Field(strict=True)]
TokenSet = Annotated[list[ListedToken], Field(min_length=1)]
TokenSequence = Annotated[list[ListedToken], Field(min_length=1, max_length=MAX_SEQUENCE_LENGTH)]
