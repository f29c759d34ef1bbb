"""Parts of a conversation's messages: texts, and calls of tools in requests, answers and chunks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted, RequestModel


# Its name in /openapi.json contains this module's: items of responses have a part of the same name.
class TextPart(RequestModel):
    """A text content part."""

    type: Literal["text"]
    text: str


class CalledFunction(RequestModel):
    """The function of a call; `arguments` is a JSON object in a string."""

    name: str
    arguments: str


class CalledTool(RequestModel):
    """A call that an earlier answer requested."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    # Calls that clients assemble from a stream still have the deltas' index.
    index: int | None = None


class Function(BaseModel):
    """The function of a call; `arguments` is JSON as written by the model."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model requests; the client returns its result in a message with its id."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class FunctionDelta(BaseModel):
    """Delta of a call's function: its name in the first piece, then pieces of its arguments."""

    name: Omitted[str] = None
    arguments: str


class ToolCallDelta(BaseModel):
    """Delta of the message's `index`-th call; only the first piece has id and type."""

    index: int
    id: Omitted[str] = None
    type: Omitted[Literal["function"]] = None
    function: FunctionDelta
