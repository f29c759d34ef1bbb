"""Tools that a chat request offers to the model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel, require_few
from fastdeploy_lp.request.limits import MAX_TOOLS

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(RequestModel):
    """A function that the model may call; `parameters` is the JSON Schema of its arguments.

    `strict` enforces the schema also if the model need not call the function.
    """

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


def _few_tools(value: Any) -> Any:
    require_few("tools", value, MAX_TOOLS)
    return value


FewTools = Annotated[list[Tool], BeforeValidator(_few_tools)]


class ChosenFunction(RequestModel):
    """The function that must be called."""

    name: FunctionName


class NamedToolChoice(RequestModel):
    """The tool that must be called."""

    type: Literal["function"] = "function"
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
