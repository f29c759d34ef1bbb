"""The chat completion that a body of the Messages API asks for, and the way back of its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.conversation import (
    ConversationMessage,
    TextBlock,
    Texts,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.tool import CustomTool, ToolChoice
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.translation.chat_body import chat_with

# Fields of a chat that a body of the Messages API has under the same name, with the same meaning.
SHARED = (
    GuidedRequest.model_fields.keys() - MessagesRequest.unsupported.keys() - {"model", "metadata", "service_tier"}
) | {"chat_template", "chat_template_kwargs"}
SYSTEM = "system"
# Shown to the model before the result of a call that failed; chat templates have no other place for that.
FAILED = "Error: "
# The code on which Anthropic's client continues without a thread.
NO_THREADS = "thread_unsupported_request"
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Paths of a chat completion, and the names of a body of the Messages API; the first match counts.
RENAMED = (
    (re.compile(r"tools\.(\d+)\.function\.parameters\b"), r"tools.\1.input_schema"),
    (re.compile(r"tools\.(\d+)\.function\b"), r"tools.\1"),
    (re.compile(r"tool_choice\.function\.name\b"), "tool_choice.name"),
    (re.compile(r"parallel_tool_calls\b"), "tool_choice.disable_parallel_tool_use"),
    (re.compile(r"response_format(\.json_schema\.schema)?\b"), "output_config.format.schema"),
    (re.compile(r"stop(?=\.|$)"), "stop_sequences"),
    (re.compile(r"enable_thinking\b"), "thinking.type"),
)


@dataclass(frozen=True)
class ChatMessageOf:
    """A message of the chat completion, and the path of the field from which it comes."""

    path: str
    message: dict[str, Any]


@dataclass(frozen=True)
class TranslatedBody:
    """`chat`: the chat completion. paths: the field from which each of its messages comes."""

    chat: ChatCompletionRequest
    paths: Sequence[str]

    def as_sent(self, error: InvalidRequestError) -> InvalidRequestError:
        """Returns the error with the names of the fields that were sent."""
        return _as_sent(error, self.paths)


def translated(body: CountTokensRequest) -> TranslatedBody:
    """Returns the chat completion that the body asks for; raises InvalidRequestError with the body's names."""
    if isinstance(body, MessagesRequest) and body.thread is not None:
        raise InvalidRequestError("thread", "this server holds no conversations; send all messages", NO_THREADS)
    messages = list(_messages(body))
    paths = [each.path for each in messages]
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [each.message for each in messages],
        **{name: getattr(body, name) for name in SHARED & body.model_fields_set},
        **_tools(body),
        **_options(body),
    }
    if body.messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if isinstance(body, MessagesRequest):
        fields["stop"] = body.stop_sequences
    try:
        return TranslatedBody(chat_with(fields), paths)
    except InvalidRequestError as error:
        raise _as_sent(error, paths) from None


def _options(body: CountTokensRequest) -> dict[str, Any]:
    """Returns the fields of the form of the answer, and the variables of the chat template."""
    fields: dict[str, Any] = {}
    if body.thinking is not None:
        fields["enable_thinking"] = body.thinking.type != "disabled"
    config = body.output_config
    if config is not None and config.effort is not None:
        # Not the field `reasoning_effort`, which has other values.
        fields["chat_template_kwargs"] = {**(body.chat_template_kwargs or {}), "reasoning_effort": config.effort}
    if config is not None and config.format is not None:
        named = {"name": "answer", "schema": config.format.json_schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return fields


def _tools(body: CountTokensRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.tools:
        fields["tools"] = [{"type": "function", "function": _function(tool)} for tool in body.tools]
    if body.tool_choice is not None:
        fields["tool_choice"] = _choice(body.tool_choice)
        fields["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    return fields


def _function(tool: CustomTool) -> dict[str, Any]:
    given = {"description": tool.description, "strict": tool.strict}
    function = {"name": tool.name, "parameters": tool.input_schema}
    return function | {name: value for name, value in given.items() if value is not None}


def _choice(choice: ToolChoice) -> str | dict[str, Any]:
    return CHOICES.get(choice.type) or {"type": "function", "function": {"name": choice.name}}


def _messages(body: CountTokensRequest) -> Iterator[ChatMessageOf]:
    if body.system is not None:
        yield ChatMessageOf(SYSTEM, {"role": SYSTEM, "content": _joined(body.system)})
    for index, message in enumerate(body.messages):
        path = f"messages.{index}"
        if message.role == "assistant":
            yield ChatMessageOf(path, _answer(message))
        else:
            yield from (ChatMessageOf(path, each) for each in _input(message))


def _input(message: ConversationMessage) -> Iterator[dict[str, Any]]:
    """Yields each result of a call as a separate message, and the texts between them; one if there are no blocks."""
    texts: list[str] = []
    for block in message.blocks:
        if isinstance(block, ToolResultBlock):
            if texts:
                yield {"role": message.role, "content": "".join(texts)}
            texts = []
            result = (FAILED if block.is_error else "") + _joined(block.content or "")
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
        elif isinstance(block, TextBlock):
            texts.append(block.text)
    if texts or not message.blocks:
        yield {"role": message.role, "content": "".join(texts)}


def _answer(message: ConversationMessage) -> dict[str, Any]:
    """Returns a message of the assistant; an answer without text has the content ""."""
    texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in message.blocks if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in message.blocks if isinstance(block, ToolUseBlock)]
    answer: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        answer["reasoning_content"] = "".join(thoughts)
    if calls:
        answer["tool_calls"] = calls
    return answer


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}


def _joined(texts: Texts) -> str:
    return texts if isinstance(texts, str) else "".join(block.text for block in texts)


def _as_sent(error: InvalidRequestError, paths: Sequence[str]) -> InvalidRequestError:
    reason = error.reason.replace("response_format", "output_config.format")
    return InvalidRequestError(_sent_path(error.param or "", paths), reason, error.code)


def _sent_path(path: str, paths: Sequence[str]) -> str:
    found = re.match(r"messages\.(\d+)", path)
    if found is not None and int(found.group(1)) < len(paths):
        return paths[int(found.group(1))]
    if path == "continue_final_message":
        return paths[-1]
    for pattern, name in RENAMED:
        if pattern.match(path):
            return pattern.sub(name, path, count=1)
    return path
