"""Bodies of POST /v1/chat/completions: the messages of a conversation, requests, answers and chunks."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.logprobs import ChatLogprobs, PromptLogprobs
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.message import CalledTool, TextPart, ToolCall, ToolCallDelta
from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted, RequestModel, TokenIds, now, require_few
from fastdeploy_lp.entrypoints.openai.protocol.tool import FewTools, NamedToolChoice, ToolChoice
from fastdeploy_lp.entrypoints.openai.protocol.trace import ShadowCounts, TokenTraceBody
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.request.limits import MAX_MESSAGES
from fastdeploy_lp.request.outputs import ProcessorOutputs, StopCause
from fastdeploy_lp.request.sampling_params import SamplingParams


class ChatMessage(RequestModel):
    """One message of a conversation."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"annotations": ([],)}
    unsupported: ClassVar[dict[str, str]] = {
        "function_call": "replaced by tool_calls, which are supported",
        "audio": "this model reads text only",
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_parts_only(cls, message: Any) -> Any:
        """Rejects other parts before pydantic reports a longer error for the union of string and list."""
        parts = message.get("content") if isinstance(message, dict) else None
        for index, part in enumerate(parts if isinstance(parts, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise ValueError(
                    f"content.{index}.type: {kind!r} is not supported; this model reads parts of type text"
                )
        return message

    @model_validator(mode="after")
    def _fields_go_with_the_role(self) -> Self:
        if self.content is None and not (self.tool_calls and self.role == "assistant"):
            raise ValueError(f"content: needed in a message of the role {self.role}, unless it has tool_calls")
        for name in ("tool_calls", "reasoning_content", "refusal"):
            if getattr(self, name) and self.role != "assistant":
                raise ValueError(f"{name}: only allowed in a message of the role assistant, not {self.role}")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id: needed in a message of the role tool")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError(f"tool_call_id: only allowed in a message of the role tool, not {self.role}")
        return self


def _few_messages(value: Any) -> Any:
    require_few("messages", value, MAX_MESSAGES)
    return value


FewMessages = Annotated[list[ChatMessage], BeforeValidator(_few_messages)]


# Fields of a body that are passed to the chat template as variables.
TEMPLATE_FIELDS = ("enable_thinking", "reasoning_effort", "verbosity")
FROM_THE_FIRST_TOKEN = {"after_tokens": 0}
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


class Prediction(RequestModel):
    """Text that the answer is likely to repeat, such as the file that it changes."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatCompletionRequest(GuidedRequest):
    """Body of POST /v1/chat/completions; `prompt_token_ids` replace the messages if both are set."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GuidedRequest.without_effect,
        "modalities": (["text"],),
        "functions": ([],),
        "function_call": ("none",),
    }
    unsupported: ClassVar[dict[str, str]] = {
        **GuidedRequest.unsupported,
        "audio": "this model writes text only",
        "modalities": 'this model writes text only; only ["text"] is allowed',
        "functions": "replaced by tools, which are supported",
        "function_call": "replaced by tool_choice, which is supported",
        "web_search_options": "there is no web search here",
    }

    messages: FewMessages
    prompt_token_ids: TokenIds | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: FewTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    prediction: Prediction | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    include_reasoning: bool = True

    @model_validator(mode="before")
    @classmethod
    def _token_ids_stand_in(cls, body: Any) -> Any:
        """Adds empty messages, which are otherwise required."""
        if isinstance(body, dict) and body.get("prompt_token_ids") is not None and body.get("messages") is None:
            return {**body, "messages": []}
        return body

    @model_validator(mode="after")
    def _something_to_answer(self) -> Self:
        if not self.messages and self.prompt_token_ids is None:
            raise ValueError("messages: at least one message is needed")
        return self

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only allowed together with logprobs: true")
        return self

    @model_validator(mode="after")
    def _newer_name_wins(self) -> Self:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self

    @model_validator(mode="after")
    def _template_fields_are_settled_once(self) -> Self:
        kwargs = self.chat_template_kwargs or {}
        for name in TEMPLATE_FIELDS:
            value = getattr(self, name)
            if value is not None and kwargs.get(name, value) != value:
                raise ValueError(f"{name}: chat_template_kwargs.{name} says otherwise")
        return self

    @model_validator(mode="after")
    def _calls_are_possible(self) -> Self:
        """Checks that a chosen tool is offered, and that no guided field excludes calls."""
        chosen = self.chosen_tool
        offered = [tool.function.name for tool in self.tools or []]
        if chosen is not None and chosen not in offered:
            raise ValueError(
                f"tool_choice.function.name: {chosen!r} is none of the tools: {', '.join(offered) or 'none'}"
            )
        if self.may_call_tools and self.guided_fields:
            raise ValueError(f"{self.guided_fields[0]}: with tools that may be called only response_format is allowed")
        return self

    def sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters; raises ValueError naming the field."""
        params = super().sampling_params()
        params.prediction = self.prediction.text if self.prediction is not None else None
        return params

    @property
    def may_call_tools(self) -> bool:
        """True if the request offers tools to the model."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def may_have_json(self) -> bool:
        """True if a field asks for JSON, or tools do."""
        return self.may_call_tools or super().may_have_json

    @property
    def chosen_tool(self) -> str | None:
        """The one tool that must be called; None for no such tool."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, NamedToolChoice) else None

    @property
    def must_call_tools(self) -> bool:
        """True if the answer must be a tool call."""
        return bool(self.tools) and (self.tool_choice == "required" or self.chosen_tool is not None)

    @property
    def may_have_form(self) -> bool:
        """True if a field asks for a form, or tools may."""
        return self.may_call_tools or super().may_have_form

    @property
    def may_reason(self) -> bool:
        """True unless the request has its form from the first token on, so that no reasoning can precede it."""
        return self.guided_when != FROM_THE_FIRST_TOKEN

    def sent_kind(self, kind: str) -> str:
        """Returns the body's name of a kind: "tools" for a grammar without a guided field, which the tools require."""
        return "tools" if kind == "grammar" and not self.guided_fields else super().sent_kind(kind)

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """The chat template's variables, including the fields that are variables of some templates."""
        fields = {name: value for name in TEMPLATE_FIELDS if (value := getattr(self, name)) is not None}
        return {**(self.chat_template_kwargs or {}), **fields}

    @property
    def num_logprobs(self) -> int | None:
        """`top_logprobs`, 0 by default; None without logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def other_names(self) -> dict[str, str]:
        """Fields whose name in the body differs; `max_tokens` may be sent as `max_completion_tokens`."""
        newer = {"max_tokens": "max_completion_tokens"} if self.max_completion_tokens is not None else {}
        return super().other_names | {"logprobs": "top_logprobs"} | newer


class AssistantMessage(BaseModel):
    """The generated message; `content` is null if it has only calls. `refusal` is part of OpenAI's schema."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: Omitted[str] = None
    tool_calls: Omitted[list[ToolCall]] = None


class ChatChoice(BaseModel):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: StopCause | None = None
    token_ids: Omitted[list[int]] = None
    logits_processors_trace: Omitted[list[TokenTraceBody]] = None
    logits_processors_shadow: Omitted[dict[str, ShadowCounts]] = None
    logits_processors_outputs: Omitted[ProcessorOutputs] = None


def new_chat_id(request_id: str | None = None) -> str:
    """Returns an id for a chat completion, derived from the request's id if it has one."""
    return f"chatcmpl-{(request_id or uuid.uuid4().hex).removeprefix('chatcmpl-')}"


def new_call_id() -> str:
    """Returns an id for a tool call."""
    return f"call_{uuid.uuid4().hex}"


class ChatCompletionResponse(BaseModel):
    """Body of a plain answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=now)
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: Omitted[list[int]] = None


class ChatDelta(BaseModel):
    """Delta of a choice; only the first chunk has `role`."""

    role: Omitted[Literal["assistant"]] = None
    content: Omitted[str] = None
    reasoning_content: Omitted[str] = None
    tool_calls: Omitted[list[ToolCallDelta]] = None


class ChatChunkChoice(BaseModel):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopCause | None = None
    token_ids: Omitted[list[int]] = None
    logits_processors_trace: Omitted[list[TokenTraceBody]] = None
    logits_processors_shadow: Omitted[dict[str, ShadowCounts]] = None
    logits_processors_outputs: Omitted[ProcessorOutputs] = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer; the usage chunk has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = Field(default_factory=now)
    model: str
    choices: list[ChatChunkChoice]
    usage: Omitted[Usage] = None
    prompt_token_ids: Omitted[list[int]] = None
