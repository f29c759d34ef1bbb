"""Bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.anthropic.conversation import (
    CacheControl,
    FewMessages,
    Texts,
    require_types,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.tool import FewCustomTools, ToolChoice
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel
from fastdeploy_lp.entrypoints.openai.protocol.request import Texts as ManyTexts


class Thinking(RequestModel):
    """Reasoning before the answer: required, ruled out, or up to the model, if the chat template supports that."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _options_need_thinking(self) -> Self:
        if self.budget_tokens is not None and self.type != "enabled":
            raise ValueError("budget_tokens: only allowed with the type enabled")
        if self.display is not None and self.type == "disabled":
            raise ValueError("display: not allowed with the type disabled")
        return self


class OutputFormat(RequestModel):
    """JSON that conforms to a JSON Schema."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)

    type: Literal["json_schema"]
    # pydantic has a method of that name.
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """The form of the answer, and a variable of the chat template."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(RequestModel):
    """Metadata of a request; means nothing here."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class CountTokensRequest(RequestModel):
    """Body of POST /v1/messages/count_tokens: what becomes the prompt."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"speed": ("standard",), "mcp_servers": ([],)}
    unsupported: ClassVar[dict[str, str]] = {
        "container": "there are no containers here",
        "diagnostics": "there are no diagnostics of the cache here",
        "inference_geo": "this server runs where it runs",
        "mcp_servers": "this server calls no MCP servers; offer their tools in tools",
        "speed": "only standard is allowed",
    }

    model: str | None = None
    messages: FewMessages
    system: Texts | None = None
    tools: FewCustomTools | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _system_is_text(cls, body: Any) -> Any:
        if isinstance(body, dict):
            require_types("system", body.get("system"), ("text",))
        return body

    @model_validator(mode="after")
    def _something_to_answer(self) -> Self:
        if not self.messages:
            raise ValueError("messages: at least one message is needed")
        last = self.messages[-1]
        if last.role == "assistant" and any(block.type == "tool_use" for block in last.blocks):
            raise ValueError(
                f"messages.{len(self.messages) - 1}.content: after a tool_use block, a message with its tool_result "
                "is needed"
            )
        return self

    @model_validator(mode="after")
    def _chosen_tools_are_there(self) -> Self:
        choice = self.tool_choice
        if choice is None or choice.type == "none":
            return self
        if not self.tools:
            raise ValueError("tool_choice: only allowed together with tools")
        offered = [tool.name for tool in self.tools]
        if choice.name is not None and choice.name not in offered:
            raise ValueError(f"tool_choice.name: {choice.name!r} is none of the tools: {', '.join(offered)}")
        return self

    @model_validator(mode="after")
    def _effort_is_settled_once(self) -> Self:
        effort = self.output_config.effort if self.output_config is not None else None
        if effort is not None and (self.chat_template_kwargs or {}).get("reasoning_effort", effort) != effort:
            raise ValueError("output_config.effort: chat_template_kwargs.reasoning_effort says otherwise")
        return self


class MessagesRequest(CountTokensRequest, GuidedRequest):
    """Body of POST /v1/messages; sampling fields and processors as for a chat."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GuidedRequest.without_effect,
        **CountTokensRequest.without_effect,
        "n": (1,),
    }
    unsupported: ClassVar[dict[str, str]] = {
        **GuidedRequest.unsupported,
        **CountTokensRequest.unsupported,
        **dict.fromkeys(
            ("logprobs", "top_logprobs", "prompt_logprobs", "return_tokens_as_token_ids"),
            "only chat completions have logprobs",
        ),
        "n": "a body has one answer; only 1 is allowed",
        "stop": "has the name stop_sequences here",
        "response_format": "has the name output_config.format here",
        "stream_options": "every stream has its usage",
        **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), "cache_control is supported"),
        **dict.fromkeys(("user", "safety_identifier"), "has the name metadata.user_id here"),
        "store": "this server stores no messages",
    }

    max_tokens: int
    stop_sequences: ManyTexts | None = None
    metadata: Metadata | None = None  # type: ignore[assignment]
    # Only null is allowed.
    thread: dict[str, Any] | None = None
    # Means nothing here.
    service_tier: Literal["auto", "standard_only"] | None = None  # type: ignore[assignment]

    @property
    def may_have_json(self) -> bool:
        """True if a field asks for JSON."""
        return super().may_have_json or (self.output_config is not None and self.output_config.format is not None)

    @property
    def may_have_form(self) -> bool:
        """True if a field asks for a form; tools may, if a call is required."""
        return super().may_have_form or self.may_have_json or bool(self.tools)
