"""Token counts of a request."""

from __future__ import annotations

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted


class PromptTokensDetails(BaseModel):
    """Number of prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Reasoning tokens in the output, including markers, and draft tokens that became output or did not."""

    reasoning_tokens: Omitted[int] = None
    accepted_prediction_tokens: Omitted[int] = None
    rejected_prediction_tokens: Omitted[int] = None


class Usage(BaseModel):
    """Token counts; `completion_tokens` sums all choices. Reasoning is counted if the server separates it, draft
    tokens if it verifies them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: Omitted[CompletionTokensDetails] = None
