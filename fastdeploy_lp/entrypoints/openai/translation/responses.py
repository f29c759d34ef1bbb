"""A conversation of items as a chat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    MessageItem,
    ReasoningItem,
    RefusalPart,
    TextPart,
)
from fastdeploy_lp.entrypoints.openai.protocol.responses import (
    AllowedTools,
    Conversation,
    FunctionChoice,
    ResponsesRequest,
    TextFormat,
)
from fastdeploy_lp.entrypoints.openai.translation.chat_body import chat_with

# Fields of a chat that a response has under the same name, with the same meaning.
SHARED = (GuidedRequest.model_fields.keys() - ResponsesRequest.unsupported.keys() - {"stream_options"}) | {
    "chat_template",
    "chat_template_kwargs",
    "enable_thinking",
    "include_reasoning",
    "parallel_tool_calls",
}
# Other fields of a chat, and their names in a response; a longer path comes before its beginning.
NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "tool_choice.function.name": "tool_choice.name",
}
_FUNCTION_OF_TOOL = re.compile(r"^(tools\.\d+)\.function\b")


def as_sent(error: InvalidRequestError) -> InvalidRequestError:
    """Returns an error of the chat with the response's name of the field."""
    path = _FUNCTION_OF_TOOL.sub(r"\1", error.param or "")
    for name, own in NAMES.items():
        if path == name or path.startswith(f"{name}."):
            path = own + path[len(name) :]
            break
    return InvalidRequestError(path or None, error.reason, error.code)


def chat_of(request: ResponsesRequest, before: Sequence[InputItem] = ()) -> ChatCompletionRequest:
    """Returns the chat that a response is the answer of.

    before: the items of the conversation that `previous_response_id` names. Raises InvalidRequestError with the
    response's field names.
    """
    given = {name: getattr(request, name) for name in request.model_fields_set & SHARED}
    sampling = {
        "max_completion_tokens": request.max_output_tokens,
        "logprobs": request.has_logprobs or None,
        "top_logprobs": request.top_logprobs,
        "response_format": _response_format(request.text.format) if request.text and request.text.format else None,
    }
    return _chat({**given, **sampling, **_conversation(request, before)})


def prompt_chat_of(request: Conversation, before: Sequence[InputItem] = ()) -> ChatCompletionRequest:
    """Returns a chat with the prompt of this conversation; raises as `chat_of` does."""
    given = {name: getattr(request, name) for name in request.model_fields_set & SHARED}
    return _chat({**given, **_conversation(request, before)})


def items_of(given: str | list[InputItem]) -> list[InputItem]:
    """Returns the items of an input; a text is a message of the user."""
    return [MessageItem(role="user", content=given)] if isinstance(given, str) else given


def _chat(fields: dict[str, Any]) -> ChatCompletionRequest:
    try:
        return chat_with(fields)
    except InvalidRequestError as error:
        raise as_sent(error) from None


def _conversation(request: Conversation, before: Sequence[InputItem]) -> dict[str, Any]:
    messages = _messages([*before, *items_of(request.input)])
    if request.instructions is not None:
        messages.insert(0, {"role": "system", "content": request.instructions})
    tools = request.tools
    choice: Any = request.tool_choice
    if isinstance(choice, AllowedTools):
        allowed = {each.name for each in choice.tools}
        _require_offered(allowed - {tool.name for tool in tools or ()})
        tools = [tool for tool in tools or () if tool.name in allowed]
        choice = choice.mode
    elif isinstance(choice, FunctionChoice):
        choice = {"type": "function", "function": {"name": choice.name}}
    return {
        "messages": messages,
        "tools": [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in tools or ()] or None,
        "tool_choice": choice,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        "verbosity": request.text.verbosity if request.text else None,
    }


def _require_offered(unknown: set[str]) -> None:
    if unknown:
        reason = f"{sorted(unknown)[0]!r} is none of the tools"
        raise InvalidRequestError("tool_choice.tools", reason)


def _response_format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    described = form.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": form.type, "json_schema": described}


def _messages(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Returns the chat's messages: reasoning, text and calls of one answer are one message of the assistant."""
    messages = list[dict[str, Any]]()
    answer: dict[str, Any] | None = None
    for item in items:
        if isinstance(item, FunctionCallOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            answer = None
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.role, "content": _text(item.content)})
            answer = None
        else:
            # Only calls follow the text of the same answer.
            if answer is None or (answer.keys() & {"content", "tool_calls"} and not isinstance(item, FunctionCallItem)):
                answer = {"role": "assistant"}
                messages.append(answer)
            _add(answer, item)
    for message in messages:
        if message["role"] == "assistant" and "tool_calls" not in message:
            message.setdefault("content", "")
    return messages


def _add(answer: dict[str, Any], item: InputItem) -> None:
    if isinstance(item, ReasoningItem):
        reasoning = "".join(part.text for part in (item.content or item.summary or ()))
        if reasoning:
            answer["reasoning_content"] = answer.get("reasoning_content", "") + reasoning
    elif isinstance(item, FunctionCallItem):
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        answer.setdefault("tool_calls", []).append(call)
    elif isinstance(item, MessageItem):
        answer["content"] = _text(item.content)


def _text(content: str | Sequence[TextPart | RefusalPart]) -> str | list[dict[str, str]]:
    """Returns the content of a chat's message: one text as such, several as parts."""
    if isinstance(content, str):
        return content
    texts = [part.refusal if isinstance(part, RefusalPart) else part.text for part in content]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
