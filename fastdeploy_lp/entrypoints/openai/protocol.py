"""The OpenAI API's bodies, as far as this server speaks them."""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from fastdeploy_lp.sampling_params import SamplingParams


class ErrorInfo(BaseModel):
    """`type` is OpenAI's class of error, `param` the JSON path of the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of every response that is no success, and of an error event in a stream."""

    error: ErrorInfo


class RequestModel(BaseModel):
    """A body that is taken literally: no type coercion, and no field is ignored.

    Clients spell out fields they do not use. An unknown field that is null, and a field of OpenAI's that this server
    does not act on yet but whose value asks for nothing, are accepted.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    without_effect: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known = cls.model_fields
        absent = object()
        return {
            name: value
            for name, value in body.items()
            if name in known or not (value is None or value == cls.without_effect.get(name, absent))
        }


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

    def for_template(self) -> dict[str, str]:
        """The message as chat templates read it, its parts joined."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text} | ({"name": self.name} if self.name else {})


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    include_usage: bool = False


class ChatCompletionRequest(RequestModel):
    """Body of POST /v1/chat/completions; limits of sampling fields are those of `SamplingParams`."""

    without_effect: ClassVar[dict[str, Any]] = {
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "logit_bias": {},
        "logprobs": False,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
    }

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logits_processors_args: dict[str, Any] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> ChatCompletionRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed together with stream: true")
        return self

    def sampling_params(self) -> SamplingParams:
        """Raises ValueError naming the field."""
        names = ("n", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids", "logits_processors_args")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        max_tokens = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return SamplingParams(**given, max_tokens=max_tokens, ignore_eos=self.ignore_eos)


class Usage(BaseModel):
    """Token counts; `completion_tokens` sums all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(BaseModel):
    """The generated message."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: str
    stop_reason: int | str | None = None


def new_completion_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


def _now() -> int:
    return int(time.time())


class ChatCompletionResponse(BaseModel):
    """Body of a plain answer."""

    id: str = Field(default_factory=new_completion_id)
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[ChatChoice]
    usage: Usage


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
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer; the usage chunk has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(default_factory=_now)
    owned_by: str = "fastdeploy_lp"
    max_model_len: int


class ModelList(BaseModel):
    """Body of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
