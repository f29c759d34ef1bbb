"""Tools that a chat request offers to the model, and the constraints on calls."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.message_parser import CallableTool, MessageParsers, ToolGrammar
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.guided_decoding.params import GuidedDecodingParams


def offered_tools(request: ChatCompletionRequest, parsers: MessageParsers) -> list[dict[str, Any]] | None:
    """Returns the tools for the chat template, None for no tools; raises InvalidRequestError.

    With `tool_choice` "none" the template shows no tools, so that the model cannot call them.
    """
    choice = request.tool_choice
    if not request.tools:
        if choice is not None and choice != "none":
            raise InvalidRequestError("tool_choice", f"{choice!r} is only allowed together with tools")
        return None
    if choice == "none":
        return None
    if not parsers.reads_tools:
        reason = "the chat template of this model shows no tool calls that this server can read; --chat-template and "
        raise InvalidRequestError("tools", f"{reason}--tool-call-parser at its start may change that")
    # `strict` is for the server, not for the model.
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in request.tools]


def guided_calls(request: ChatCompletionRequest, engine: Engine) -> GuidedDecodingParams | None:
    """Returns the constraint on an answer that may or must contain calls; None if the tools require none.

    Required calls conform to the schemas of their functions; optional calls do for `strict` functions only.
    """
    parser, tools = engine.message_parsers.tool_parser, request.tools or []
    if parser is None or not request.may_call_tools:
        return None
    grammar = ToolGrammar(parser, any_whitespace=engine.fd_config.guided_decoding_config.any_whitespace)
    functions = [tool.function for tool in tools]
    if request.must_call_tools:
        chosen = [each for each in functions if request.chosen_tool in (None, each.name)]
        called = [CallableTool.of(each.name, each.parameters) for each in chosen]
        several = request.parallel_tool_calls and request.chosen_tool is None
        return GuidedDecodingParams(grammar=grammar.calls(called, several=several))
    called = [CallableTool.of(each.name, each.parameters if each.strict else None) for each in functions]
    form = request.response_format
    if form is not None and form.is_json:
        text = grammar.calls(called, several=request.parallel_tool_calls, answer=form.schema_of_answer)
        return GuidedDecodingParams(grammar=text)
    if not any(each.strict for each in functions) or (form is not None and form.type != "text"):
        return None
    return GuidedDecodingParams(grammar=grammar.text_with_calls(called))
