"""Converts a conversation to the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastdeploy_lp.engine.errors import InvalidRequestError


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Converts OpenAI messages to the form that chat templates expect; raises InvalidRequestError naming the field.

    Text parts are joined, the role `developer` becomes `system`, the arguments of tool calls become objects instead of
    JSON text, and a message with only tool calls gets empty content.
    """
    return [_message(message, f"messages.{index}") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    shown = {**message, "role": "system" if role == "developer" else role, "content": _joined(content)}
    if isinstance(calls, Sequence) and calls:
        shown["tool_calls"] = [_tool_call(call, f"{path}.tool_calls.{index}") for index, call in enumerate(calls)]
        shown["content"] = shown["content"] or ""
    return shown


def _joined(content: Any) -> Any:
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    return content


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequestError(path, "must be an object with the called function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{path}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str, path: str) -> dict[str, Any]:
    try:
        # Some clients send an empty string for a call without arguments.
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(path, f"must be a JSON object in a string: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(path, "must be a JSON object in a string")
    return parsed
