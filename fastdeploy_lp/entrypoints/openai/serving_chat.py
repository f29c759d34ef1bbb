"""POST /v1/chat/completions: conversion of a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastdeploy_lp.engine.answer_size import prompt_logprobs_bytes
from fastdeploy_lp.engine.chat_template import ChatOptions, for_template
from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.host_threads import Run
from fastdeploy_lp.engine.input_processor import EngineRequest, Prompt
from fastdeploy_lp.entrypoints.openai.chat_events import ChatEvents
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.event_stream import DONE, server_sent_event
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array
from fastdeploy_lp.entrypoints.openai.logprobs import prompt_logprobs_pieces
from fastdeploy_lp.entrypoints.openai.message_reader import MessageReader
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    new_chat_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, usage_of
from fastdeploy_lp.entrypoints.openai.tools import guided_calls, offered_tools
from fastdeploy_lp.outputs import RequestOutput
from fastdeploy_lp.sampling_params import SamplingParams


class ServingChat:
    """Chat completions on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)

    async def start(self, request: ChatCompletionRequest, caller: Caller) -> Generation:
        """Admits a request; raises InvalidRequestError, NotFoundError, or the engine's admission errors."""
        engine, inside = self._serving.engine, self._serving.inside(caller)
        params = await inside(partial(self._params, request))
        engine.require_room(params.n, caller.client)
        prompt = await self._prompt(request, caller, inside)
        (settled,) = await self._serving.settle([prompt], params, request, caller)
        name = new_chat_id(request.request_id)
        admitted = EngineRequest(name, prompt, settled, caller.client, caller.deadline)
        caller.hold(prompt_logprobs_bytes([admitted], "prompt_logprobs"))
        (generation,) = await engine.generate([admitted], stream=request.stream)
        return generation

    def _params(self, request: ChatCompletionRequest) -> SamplingParams:
        params = self._serving.params(request)
        self._serving.require_few_values(params, 1, request)
        calls = guided_calls(request, self._serving.engine)
        if calls is not None:
            params.guided_decoding = calls
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

    async def _prompt(self, request: ChatCompletionRequest, caller: Caller, inside: Run) -> Prompt:
        engine = self._serving.engine
        if request.chat_template is None or request.prompt_token_ids is not None:
            return await inside(partial(self._own_prompt, request))
        messages, options = await inside(partial(self._conversation, request))
        rendered = await engine.request_templates.render(messages, options, caller.client)
        return await inside(partial(engine.inputs.rendered_prompt, rendered))

    def _own_prompt(self, request: ChatCompletionRequest) -> Prompt:
        """Returns the prompt from the given token ids, or from the server's chat template."""
        inputs = self._serving.engine.inputs
        if request.prompt_token_ids is not None:
            offered_tools(request, self._serving.engine.message_parsers)
            return inputs.prompt(request.prompt_token_ids, "prompt_token_ids")
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

    async def stream(self, generation: Generation, request: ChatCompletionRequest) -> AsyncGenerator[bytes, None]:
        """Yields server-sent events: a role chunk per choice, deltas, usage if requested, and [DONE].

        A request that fails ends with an error event; a client's disconnect aborts it.
        """
        try:
            events = ChatEvents(self._serving, generation, request)
            yield events.opening()
            async with aclosing(generation.deltas()) as batches:
                async for deltas in batches:
                    if encoded := b"".join([events.of(delta) for delta in deltas]):
                        yield encoded
            if request.include_usage:
                yield events.usage()
        except Exception as error:  # noqa: BLE001 - the status line is sent; an event is the only way left to tell
            yield server_sent_event(ErrorResponse(error=describe(error)[1]))
        finally:
            generation.close()
        yield DONE
