"""Answers of the Messages API: a message of blocks, whole or as events."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted
from fastdeploy_lp.entrypoints.openai.protocol.trace import ShadowCounts, TokenTraceBody
from fastdeploy_lp.request.outputs import ProcessorOutputs, ProcessorStop

# "abort": ended by POST /v1/abort_requests, which Anthropic's API does not have.
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "abort"]


def new_message_id(request_id: str | None = None) -> str:
    """Returns an id for a message, derived from the request's id if it has one."""
    return f"msg_{(request_id or uuid.uuid4().hex).removeprefix('msg_')}"


class Text(BaseModel):
    """A text of the answer."""

    type: Literal["text"] = "text"
    text: str


class ThinkingText(BaseModel):
    """Reasoning before the answer; the signature is the message's id, since clients require one."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUse(BaseModel):
    """A call that the model requests; the client returns its result in a `tool_result` block with its id."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = Text | ThinkingText | ToolUse


class ThinkingTokens(BaseModel):
    """Number of reasoning tokens in the output, including markers."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Token counts; `input_tokens` excludes the prompt's tokens that were found in the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: Omitted[ThinkingTokens] = None

    @classmethod
    def of(cls, prompt: int, cached: int, output: int, thinking: int | None) -> MessageUsage:
        """Returns the counts; `thinking` is None if reasoning is not separated."""
        details = None if thinking is None else ThinkingTokens(thinking_tokens=thinking)
        return cls(
            input_tokens=prompt - cached,
            cache_read_input_tokens=cached,
            output_tokens=output,
            output_tokens_details=details,
        )


class Details(BaseModel):
    """Details of tokens, which only requests that ask for them get."""

    token_ids: Omitted[list[int]] = None
    logits_processors_trace: Omitted[list[TokenTraceBody]] = None
    logits_processors_shadow: Omitted[dict[str, ShadowCounts]] = None
    logits_processors_outputs: Omitted[ProcessorOutputs] = None


class MessageResponse(Details):
    """Body of a plain answer, and of the first event of a stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    logits_processors_finish: Omitted[ProcessorStop] = None
    usage: MessageUsage
    prompt_token_ids: Omitted[list[int]] = None


class TokenCount(BaseModel):
    """Number of tokens of a prompt."""

    input_tokens: int
