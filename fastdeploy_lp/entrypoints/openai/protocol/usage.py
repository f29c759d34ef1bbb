"""How many tokens a request took."""

from __future__ import annotations

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """How much of the prompt was found in the prefix cache."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts; `completion_tokens` sums all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
