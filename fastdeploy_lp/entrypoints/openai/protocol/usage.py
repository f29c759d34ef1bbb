"""How many tokens a request took."""

from __future__ import annotations

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.protocol.omitted import Omitted


class PromptTokensDetails(BaseModel):
    """How much of the prompt was found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """How much of the output was reasoning, its markers included."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Token counts; `completion_tokens` sums all choices. Reasoning is counted where it is told from the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: Omitted[CompletionTokensDetails] = None
