"""POST /v1/chat/completions: conversion of a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from fastdeploy_lp.engine.chat_template import ChatOptions, for_template
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.message_parser import CallableTool, MessageParsers, ToolGrammar
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt
from fastdeploy_lp.engine.prepare.preparation import prompt_logprobs_bytes
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array
from fastdeploy_lp.entrypoints.openai.logprobs import prompt_logprobs_pieces
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    new_chat_id,
)
from fastdeploy_lp.entrypoints.openai.routes.tokenization import Tokenization
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, usage_of
from fastdeploy_lp.entrypoints.openai.streaming.chat import ChatEvents, MessageReader
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import DONE
from fastdeploy_lp.entrypoints.openai.streaming.event_writer import EventWriter
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.outputs import RequestOutput
from fastdeploy_lp.request.sampling_params import SamplingParams


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
    grammar = ToolGrammar(parser, request.json_whitespace(engine.fd_config.guided_decoding_config.json_whitespace))
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


class ServingChat:
    """Chat completions on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)
        self._tokenization = Tokenization(engine)

    async def start(self, request: ChatCompletionRequest, caller: Caller, name: str | None = None) -> Generation:
        """Admits a request; raises InvalidRequestError, NotFoundError, or the engine's admission errors.

        name: the id of the answer; None for that of a chat completion.
        """
        engine, inside = self._serving.engine, self._serving.inside(caller)
        params = await inside(partial(self._params, request))
        engine.require_room(params.n, caller.client)
        prompt = await self.prompt(request, caller)
        (settled,) = await self._serving.settle([prompt], params, request, caller)
        admitted = EngineRequest(
            name or new_chat_id(request.request_id), prompt, settled, caller.client, caller.deadline
        )
        caller.hold(prompt_logprobs_bytes([admitted], "prompt_logprobs"))
        (generation,) = await engine.generate([admitted], stream=request.stream)
        return generation

    def _params(self, request: ChatCompletionRequest) -> SamplingParams:
        params = self._serving.params(request)
        self._serving.require_few_values(params, 1, request)
        calls = guided_calls(request, self._serving.engine)
        if calls is not None:
            params.guided_decoding = msgspec.structs.replace(calls, when=request.guided_when)
        if params.guided_decoding is None and request.guided_when is not None:
            raise InvalidRequestError("guided_when", "this request has no form: no tool is strict or required")
        return params

    def response(self, output: RequestOutput, request: ChatCompletionRequest) -> PiecedObject:
        """Returns the body of a plain answer, a `ChatCompletionResponse`."""
        readers = [MessageReader(self._serving.engine, request, each.index) for each in output.completions]
        choices = [reader.choice(each) for reader, each in zip(readers, output.completions, strict=True)]
        reasoning_tokens = sum(reader.reasoning_tokens for reader in readers)
        usage = usage_of(
            len(output.prompt_token_ids),
            sum(len(each.token_ids) for each in output.completions),
            output.num_cached_tokens,
            reasoning_tokens if self._serving.engine.message_parsers.reads_reasoning else None,
            output.drafted,
        )
        response = ChatCompletionResponse(
            id=output.request_id,
            model=self._serving.model,
            choices=[],
            usage=usage,
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
        )
        members: dict[str, Pieces] = {"choices": array(choices)}
        if output.prompt_logprobs is not None:
            members["prompt_logprobs"] = prompt_logprobs_pieces(output.prompt_logprobs)
        return PiecedObject(response, members)

    async def prompt(self, request: ChatCompletionRequest, caller: Caller) -> Prompt:
        """Returns the tokens of a conversation; raises InvalidRequestError."""
        engine, inside = self._serving.engine, self._serving.inside(caller)
        if request.chat_template is None or request.prompt_token_ids is not None:
            return await inside(partial(self._own_prompt, request))
        return await inside(partial(engine.inputs.rendered_prompt, await self.rendered(request, caller)))

    async def count(self, request: ChatCompletionRequest, caller: Caller) -> int:
        """Returns the number of tokens of a conversation, which may exceed the context; raises InvalidRequestError."""
        self._serving.require_model(request.model)
        text = await self.rendered(request, caller)
        encode = partial(self._tokenization.encoded, text, "messages", add_special_tokens=False)
        return len(await self._serving.inside(caller)(encode))

    async def rendered(self, request: ChatCompletionRequest, caller: Caller) -> str:
        """Returns the conversation as the chat template shows it; raises InvalidRequestError."""
        engine, inside = self._serving.engine, self._serving.inside(caller)
        if request.chat_template is None:
            return await inside(partial(self._own_rendered, request))
        messages, options = await inside(partial(self._conversation, request))
        return await engine.request_templates.render(messages, options, caller.client)

    def _own_rendered(self, request: ChatCompletionRequest) -> str:
        messages, options = self._conversation(request)
        return self._serving.engine.tokenizer.render_chat(for_template(messages), options)

    def _own_prompt(self, request: ChatCompletionRequest) -> Prompt:
        """Returns the prompt from the given token ids, or from the server's chat template."""
        inputs = self._serving.engine.inputs
        if request.prompt_token_ids is not None:
            offered_tools(request, self._serving.engine.message_parsers)
            return replace(inputs.prompt(request.prompt_token_ids, "prompt_token_ids"), is_chat=True)
        return inputs.chat_prompt(*self._conversation(request))

    def _conversation(self, request: ChatCompletionRequest) -> tuple[list[dict[str, Any]], ChatOptions]:
        engine = self._serving.engine
        tools = offered_tools(request, engine.message_parsers)
        if request.chat_template is not None and not engine.fd_config.chat_config.trust_request_chat_template:
            reason = "only allowed on a server that was started with --trust-request-chat-template"
            raise InvalidRequestError("chat_template", reason)
        options = ChatOptions(
            tools=tools,
            chat_template=request.chat_template,
            chat_template_kwargs=request.template_kwargs,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        )
        messages = [each.model_dump(exclude_none=True) for each in request.messages]
        return for_template(messages) if request.chat_template is not None else messages, options

    async def stream(self, generation: Generation, request: ChatCompletionRequest, out: EventWriter) -> None:
        """Sends a role chunk per choice, deltas, usage if requested, and [DONE]; raises the request's error."""
        events = ChatEvents(self._serving, generation, request)
        await out.send(events.opening())
        await out.send_deltas([generation], events.of)
        await out.send(events.usage() + DONE if request.include_usage else DONE)
