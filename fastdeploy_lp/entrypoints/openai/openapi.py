"""Additions to `/openapi.json`, which FastAPI generates: error responses and schemas."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, get_args

from fastapi import FastAPI
from pydantic import BaseModel

from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import MessagesError
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.events import MessageEvent
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionChunk
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionResponse
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.protocol.response_events import ResponseEvent

REF = "#/components/schemas/{model}"


def failures(*statuses: int, body: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """Returns the error body for these statuses, and for 401 and 500, which any route may return.

    By reference: from a model, FastAPI builds a validator for each route and status, a tenth of the start.
    """
    content = {"application/json": {"schema": {"$ref": REF.format(model=body.__name__)}}}
    return {status: {"content": content} for status in sorted({401, 500, *statuses})}


@dataclass(frozen=True)
class Streamed:
    """The events of a streamed answer. ends_with: the data of the last event, if that is no JSON."""

    events: tuple[type[BaseModel], ...]
    ends_with: str | None = "[DONE]"


# By path.
STREAMED = {
    "/v1/chat/completions": Streamed((ChatCompletionChunk, ErrorResponse)),
    "/v1/completions": Streamed((CompletionResponse, ErrorResponse)),
    "/v1/responses": Streamed(get_args(ResponseEvent), None),
    "/v1/messages": Streamed(get_args(MessageEvent), None),
}


def publish_schema(app: FastAPI, processors: ProcessorStates, secret: Callable[[], Collection[str]]) -> None:
    """Adds streams, and parameters and outputs of the declared processors, each under its name, to the schema.

    secret: returns the names that are left out, since they do not exist for some client.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            _drop_unused_failures(schema)
            for body in (ErrorResponse, MessagesError):
                _define(schema, body)
            for path, streamed in STREAMED.items():
                _declare_stream(schema, path, streamed)
        schema = generate()
        shown: dict[str, Any] = {}
        for info in processors.describe():
            if info.name not in secret():
                shown |= {f"logits_processors.{info.name}": info.parameters}
                shown |= {f"logits_processors_outputs.{info.name}": info.output}
        found = {**schema["components"]["schemas"], **{name: each for name, each in shown.items() if each is not None}}
        return {**schema, "components": {**schema["components"], "schemas": found}}

    # FastAPI's documented way to extend the schema.
    app.openapi = openapi  # type: ignore[method-assign]


def _drop_unused_failures(schema: dict[str, Any]) -> None:
    """Removes FastAPI's status 422 for invalid bodies, which get 400 and OpenAI's error here."""
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)


def _declare_stream(schema: dict[str, Any], path: str, streamed: Streamed) -> None:
    """Declares a POST that answers with server-sent events if its body sets `stream`."""
    for event in streamed.events:
        _define(schema, event)
    either = [{"$ref": REF.format(model=kind.__name__)} for kind in streamed.events]
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": either}}
    last = [] if streamed.ends_with is None else [{"const": streamed.ends_with}]
    item = {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [*last, data]}}}
    schema["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"] = {"itemSchema": item}


def _define(schema: dict[str, Any], model: type[BaseModel]) -> None:
    described = model.model_json_schema(ref_template=REF)
    for name, definition in (described.pop("$defs", {}) | {model.__name__: described}).items():
        schema["components"]["schemas"].setdefault(name, definition)
