"""The OpenAI API's bodies, as far as this server speaks them."""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.logprobs import ChatLogprobs, CompletionLogprobs, PromptLogprobs
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


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    include_usage: bool = False


class GenerationRequest(RequestModel):
    """What chat and text completions share; the limits of sampling fields are those of `SamplingParams`."""

    # Fields that go to SamplingParams under their own names.
    sampling_fields: ClassVar[tuple[str, ...]] = (
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "bad_words",
        "bad_words_token_ids",
        "allowed_token_ids",
        "min_tokens",
        "prompt_logprobs",
        "seed",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "logits_processors_args",
        "logits_processors",
    )

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    logits_processors_args: dict[str, Any] | None = None
    logits_processors: dict[str, Any] | list[Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed together with stream: true")
        return self

    @model_validator(mode="after")
    def _prompt_logprobs_come_whole(self) -> Self:
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs: only allowed without stream: true")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are asked for at each output token; None for no logprobs at all."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sent_name(self, field: str) -> str:
        """The body's name for a field of SamplingParams, or for a path into one."""
        first, dot, rest = field.partition(".")
        return f"{self.other_names.get(first, first)}{dot}{rest}"

    @property
    def other_names(self) -> dict[str, str]:
        """Fields whose name in the body differs."""
        return {"extra_args": "vllm_xargs"}

    def sampling_params(self) -> SamplingParams:
        """Raises ValueError naming the field."""
        given = {name: value for name in self.sampling_fields if (value := getattr(self, name)) is not None}
        return SamplingParams(
            **given,
            max_tokens=self.max_tokens,
            logprobs=self.num_logprobs,
            extra_args=self.vllm_xargs,
            ignore_eos=self.ignore_eos,
        )


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


class PromptTokensDetails(BaseModel):
    """How much of the prompt was found in the prefix cache."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts; `completion_tokens` sums all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


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


def new_completion_id() -> str:
    """An id for a text completion."""
    return f"cmpl-{uuid.uuid4().hex}"


def _now() -> int:
    return int(time.time())


class ChatCompletionResponse(BaseModel):
    """Body of a plain answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=_now)
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
    created: int = Field(default_factory=_now)
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


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
    created: int = Field(default_factory=_now)
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class ProcessorCounters(BaseModel):
    """What a logits processor did since the worker started."""

    seconds: float
    rows: int
    requests: int
    faults: int
    slow_steps: int
    skipped_greedy: int


class ProcessorCard(BaseModel):
    """One declared logits processor; `parameters` is the JSON Schema of its arguments, null if it is not known."""

    name: str
    object: Literal["logits_processor"] = "logits_processor"
    dialect: str
    source: str
    spec: str
    order: int
    argmax_invariant: bool | None
    parameters: dict[str, Any] | None
    description: str
    state: str
    last_error: str | None
    counters: ProcessorCounters


class ProcessorList(BaseModel):
    """Body of GET /v1/logits_processors, in the order of execution."""

    object: Literal["list"] = "list"
    data: list[ProcessorCard]


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
