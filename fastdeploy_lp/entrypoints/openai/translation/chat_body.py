"""The body of a chat completion from fields that another API's body has."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.errors import field_and_reason, foremost, json_path
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest


def chat_with(fields: dict[str, Any]) -> ChatCompletionRequest:
    """Returns the chat completion with these fields; raises InvalidRequestError with the chat's field names."""
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        first = foremost(error.errors(include_url=False), fields)
        param, reason = field_and_reason(first, json_path(first["loc"], fields))
        raise InvalidRequestError(param or None, reason) from None
