"""Bodies of POST /v1/chat/completions."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.logprobs import ChatLogprobs, PromptLogprobs
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest, RequestModel
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage


class TextPart(RequestModel):
    """A text content part."""

    type: Literal["text"]
    text: str


class ChatMessage(RequestModel):
    """One message of a conversation."""

    without_effect: ClassVar[dict[str, Any]] = {"tool_calls": [], "annotations": []}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    without_effect: ClassVar[dict[str, Any]] = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only allowed together with logprobs: true")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """`top_logprobs`, which is 0 unless the body says otherwise."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _newer_name_wins(self) -> Self:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self

    @property
    def other_names(self) -> dict[str, str]:
        """`max_tokens` may have come as `max_completion_tokens`."""
        newer = {"max_tokens": "max_completion_tokens"} if self.max_completion_tokens is not None else {}
        return super().other_names | {"logprobs": "top_logprobs"} | newer


class AssistantMessage(BaseModel):
    """The generated message."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: int | str | None = None


def new_chat_id() -> str:
    """An id for a chat completion."""
    return f"chatcmpl-{uuid.uuid4().hex}"


class ChatCompletionResponse(BaseModel):
    """Body of a plain answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=now)
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None


class ChatDelta(BaseModel):
    """What a choice gained; `role` stands in its first chunk only."""

    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, str]:
        fields: dict[str, str | None] = serialize(self)
        return {name: value for name, value in fields.items() if value is not None}


class ChatChunkChoice(BaseModel):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer; the usage chunk has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = Field(default_factory=now)
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
