"""POST /v1/chat/completions: from a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastdeploy_lp.engine.answer_size import prompt_logprobs_bytes
from fastdeploy_lp.engine.chat_messages import for_template
from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.engine import Engine, EngineRequest
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.input_processor import Prompt
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
from fastdeploy_lp.entrypoints.openai.serving import Hold, Serving, hold_nothing, usage_of
from fastdeploy_lp.entrypoints.openai.tools import guided_calls, offered_tools
from fastdeploy_lp.outputs import RequestOutput


class ServingChat:
    """Chat completions on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)

    async def start(
        self, request: ChatCompletionRequest, client: str = "", deadline: float | None = None, hold: Hold = hold_nothing
    ) -> Generation:
        """Admit a request; raises InvalidRequestError, NotFoundError, or that the engine cannot take it.

        client: whose it is, where clients take turns. deadline: on the monotonic clock, None for any time.
        hold: told the bytes of numbers of a long answer before the engine takes the request; raises QueueFullError.
        """
        params = self._serving.params(request)
        prompt = await self._prompt(request)
        calls = guided_calls(request, self._serving.engine)
        if calls is not None:
            params.guided_decoding = calls
        settled = await self._serving.settle(prompt, params, request)
        admitted = EngineRequest(new_chat_id(request.request_id), prompt, settled, client, deadline)
        hold(prompt_logprobs_bytes([admitted], "prompt_logprobs"))
        (generation,) = await self._serving.engine.generate([admitted], stream=request.stream)
        return generation

    def response(self, output: RequestOutput, request: ChatCompletionRequest) -> PiecedObject:
        """The body of a plain answer, a `ChatCompletionResponse`."""
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

    async def _prompt(self, request: ChatCompletionRequest) -> Prompt:
        engine = self._serving.engine
        tools = offered_tools(request, engine.message_parsers)
        if request.prompt_token_ids is not None:
            return engine.inputs.prompt(request.prompt_token_ids, "prompt_token_ids")
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
        if request.chat_template is None:
            return engine.inputs.chat_prompt(messages, options)
        rendered = await engine.request_templates.render(for_template(messages), options)
        return engine.inputs.rendered_prompt(rendered)

    async def stream(self, generation: Generation, request: ChatCompletionRequest) -> AsyncGenerator[bytes, None]:
        """Server-sent events: a role chunk per choice, deltas, usage if asked for, and [DONE].

        A request that cannot go on ends with an error event; a client that leaves aborts it.
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
