"""Bodies of POST /v1/responses."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.chat import Effort, Verbosity
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted, RequestModel, now, require_few
from fastdeploy_lp.entrypoints.openai.protocol.response_items import FewItems, OutputItem
from fastdeploy_lp.entrypoints.openai.protocol.tool import FunctionName
from fastdeploy_lp.entrypoints.openai.protocol.trace import ShadowCounts, TokenTraceBody
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.request.limits import MAX_TOOLS
from fastdeploy_lp.request.outputs import ProcessorOutputs, StopCause

ResponseId = Annotated[str, Field(min_length=1, max_length=192, pattern=r"^[!-~]+$")]
LOGPROBS = "message.output_text.logprobs"
# All but LOGPROBS are parts of tools and inputs that do not exist here.
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class FunctionTool(RequestModel):
    """A function that the model may call; `strict` enforces the schema also if the model need not call it."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def _few_functions(value: Any) -> Any:
    require_few("tools", value, MAX_TOOLS)
    for index, tool in enumerate(value if isinstance(value, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise ValueError(f"{index}.type: {kind!r} is not supported; this server has tools of type function only")
    return value


class FunctionChoice(RequestModel):
    """The function that must be called, or one that may be."""

    type: Literal["function"]
    name: FunctionName


class AllowedTools(RequestModel):
    """The functions that may or must be called, by name; the model sees no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS)]


ResponseToolChoice = (
    Literal["none", "auto", "required"] | Annotated[FunctionChoice | AllowedTools, Field(discriminator="type")]
)


class TextFormat(RequestModel):
    """The form of the text: any, a JSON object, or JSON of a schema, which holds regardless of `strict`."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")] | None = None
    description: str | None = None
    # pydantic has a method of that name.
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        needed = self.type == "json_schema"
        for name, value in (("name", self.name), ("schema", self.json_schema)):
            if (value is not None) != needed:
                raise ValueError(f"{name}: {'needed' if needed else 'not allowed'} with the type {self.type}")
        return self


class TextConfig(RequestModel):
    """Form and length of the text; `verbosity` is a variable of the chat template."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningConfig(RequestModel):
    """`effort` is a variable of the chat template; reasoning comes as it is, and a summary is never written."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(RequestModel):
    """Options of a streamed response: OpenAI's only one is padding, which this server has not."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}


class Conversation(RequestModel):
    """The conversation that a response continues, and its tools."""

    unsupported: ClassVar[dict[str, str]] = {
        "messages": "replaced by input, which is supported",
        "conversation": "this server keeps no conversations; previous_response_id is supported",
        "prompt": "this server keeps no prompts; input and instructions are supported",
    }

    model: str | None = None
    input: str | FewItems
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    tools: Annotated[list[FunctionTool], BeforeValidator(_few_functions)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["disabled"] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None


class InputTokensRequest(Conversation):
    """Body of POST /v1/responses/input_tokens."""


class ResponsesRequest(Conversation, GuidedRequest):
    """Body of POST /v1/responses; sampling fields and processors as for a chat."""

    unsupported: ClassVar[dict[str, str]] = {
        **GuidedRequest.unsupported,
        **Conversation.unsupported,
        "max_tokens": "replaced by max_output_tokens, which is supported",
        "response_format": "replaced by text.format, which is supported",
        "n": "a response is one answer; chat completions have several",
        "prompt_logprobs": "a response has none; chat completions have them",
        "context_management": "this server does not shorten conversations",
        "moderation": "there is no moderation here",
    }

    stream_options: ResponseStreamOptions | None = None  # type: ignore[assignment]
    background: bool = False
    include: list[Included] | None = None
    max_output_tokens: int | None = None
    # Counts calls of OpenAI's own tools, which do not exist here.
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include_reasoning: bool = True

    @model_validator(mode="after")
    def _background_is_stored(self) -> Self:
        if self.background and self.store is False:
            raise ValueError("background: only allowed without store: false, since the answer is fetched later")
        if self.background and self.stream:
            raise ValueError("background: only allowed without stream: true")
        return self

    @property
    def may_have_json(self) -> bool:
        """True if a field asks for JSON."""
        form = self.text.format if self.text is not None else None
        return super().may_have_json or (form is not None and form.type != "text")

    @property
    def may_have_form(self) -> bool:
        """True if a field asks for a form; tools may, if a call is strict or required."""
        return super().may_have_form or self.may_have_json or bool(self.tools)

    @property
    def is_stored(self) -> bool:
        """True if the response is kept for later requests."""
        return self.store is not False

    @property
    def has_logprobs(self) -> bool:
        """True if output tokens are reported with their logprobs."""
        return self.top_logprobs is not None or LOGPROBS in (self.include or ())


class IncompleteDetails(BaseModel):
    """Reason of an incomplete response."""

    reason: Literal["max_output_tokens"]


class ResponseError(BaseModel):
    """Error of a failed response."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class InputTokensDetails(BaseModel):
    """Number of input tokens found in the prefix cache; nothing is charged for writing to it."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """Number of reasoning tokens in the output, including markers; 0 if the server does not separate reasoning."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """Returns the counts of a chat under the names of responses."""
        details = usage.completion_tokens_details
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=(details.reasoning_tokens or 0) if details else 0
            ),
            total_tokens=usage.total_tokens,
        )


Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


def new_response_id(request_id: str | None = None) -> str:
    """Returns an id for a response, derived from the request's id if it has one."""
    return f"resp_{(request_id or uuid.uuid4().hex).removeprefix('resp_')}"


class Response(BaseModel):
    """A response: OpenAI's fields, and this server's own after them."""

    id: str
    object: Literal["response"] = "response"
    created_at: int = Field(default_factory=now)
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningConfig
    safety_identifier: str | None
    service_tier: str | None
    store: bool
    temperature: float | None
    text: TextConfig
    tool_choice: ResponseToolChoice
    tools: list[FunctionTool]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    stop_reason: Omitted[StopCause] = None
    prompt_token_ids: Omitted[list[int]] = None
    token_ids: Omitted[list[int]] = None
    logits_processors_trace: Omitted[list[TokenTraceBody]] = None
    logits_processors_shadow: Omitted[dict[str, ShadowCounts]] = None
    logits_processors_outputs: Omitted[ProcessorOutputs] = None

    @classmethod
    def to(cls, request: ResponsesRequest, response_id: str, model: str) -> Self:
        """Returns the response that has just begun."""
        return cls(
            id=response_id,
            status="in_progress",
            background=request.background,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            metadata=request.metadata or {},
            model=model,
            parallel_tool_calls=request.parallel_tool_calls,
            previous_response_id=request.previous_response_id,
            prompt_cache_key=request.prompt_cache_key,
            reasoning=request.reasoning or ReasoningConfig(),
            safety_identifier=request.safety_identifier,
            service_tier=request.service_tier,
            store=request.is_stored,
            temperature=getattr(request, "temperature", None),
            text=request.text or TextConfig(format=TextFormat.model_validate({"type": "text"})),
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            top_logprobs=request.top_logprobs or 0,
            top_p=getattr(request, "top_p", None),
            user=request.user,
        )


class DeletedResponse(BaseModel):
    """Body of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(BaseModel):
    """Number of tokens of a conversation."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
