"""Bodies of POST /v1/completions."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from fastdeploy_lp.entrypoints.openai.logprobs import CompletionLogprobs, PromptLogprobs
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions; a list of prompts gives `n` choices each, in order."""

    without_effect: ClassVar[dict[str, Any]] = {"echo": False, "best_of": 1}

    prompt: str | list[int] | list[str] | list[list[int]] = Field(min_length=1)
    # OpenAI's default; a chat goes on to its end, a completion stops early.
    max_tokens: int | None = 16
    logprobs: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The body's own number."""
        return self.logprobs


def new_completion_id() -> str:
    """An id for a text completion."""
    return f"cmpl-{uuid.uuid4().hex}"


class TextChoice(BaseModel):
    """One text completion, or one piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionResponse(BaseModel):
    """Body of a text completion, and of each event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=now)
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
