"""POST /v1/chat/completions: conversion of a validated body to an answer, whole or as a stream of chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.chat_template import ChatOptions, for_template
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.message_parser import CallableTool, Message, MessageDelta, MessageParsers, ToolGrammar
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt
from fastdeploy_lp.engine.prepare.preparation import prompt_logprobs_bytes
from fastdeploy_lp.engine.tokenizer import TokenEnds
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array
from fastdeploy_lp.entrypoints.openai.logprobs import (
    Positions,
    chat_logprobs,
    chat_logprobs_pieces,
    prompt_logprobs_pieces,
    shown,
)
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    new_call_id,
    new_chat_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.message import Function, FunctionDelta, ToolCall, ToolCallDelta
from fastdeploy_lp.entrypoints.openai.protocol.request import now
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces, shadow_body, trace_body, trace_pieces
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.routes.tokenization import Tokenization
from fastdeploy_lp.entrypoints.openai.serving import (
    Caller,
    Serving,
    admitted,
    results_unless_disconnected,
    told_reason,
    usage_of,
)
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import (
    DONE,
    EventStream,
    EventWriter,
    StreamWatch,
    TextEvent,
    failed_events,
    server_sent_event,
)
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.outputs import CompletionDelta, CompletionOutput, RequestOutput, StopCause
from fastdeploy_lp.request.sampling_params import SamplingParams


class MessageReader:
    """Reader of one completion; `is_plain` if all of its text is the answer's content.

    `reasoning_tokens` counts the reasoning tokens, markers included.
    """

    def __init__(self, engine: Engine, request: ChatCompletionRequest, index: int) -> None:
        self._tokenizer = engine.tokenizer
        self._request = request
        self._index = index
        parsers = engine.message_parsers
        self._parser = None
        if parsers.parts:
            self._parser = parsers.new(
                tools=request.may_call_tools, parallel=request.parallel_tool_calls, reasoning=request.may_reason
            )
        skipped = request.skip_special_tokens is not False
        self._ends = TokenEnds(engine.tokenizer.decode_stream(skip_special_tokens=skipped))
        self._reads_reasoning = parsers.reads_reasoning
        self._unsent = CompletionOutput(index, "", [])
        # True if text deltas are content deltas, and no other output is requested.
        self.is_plain = self._parser is None and not request.return_token_ids and not request.is_traced

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far."""
        return 0 if self._parser is None else self._ends.count_before(self._parser.reasoning_length)

    def read(self, completion: CompletionOutput) -> ChatChoice:
        """Returns the choice of a whole completion without its long members, logprobs and trace."""
        self._count(completion.token_ids)
        message = Message(completion.text) if self._parser is None else self._parser.read(completion.text)
        calls = [
            ToolCall(id=new_call_id(), function=Function(name=call.name, arguments=call.arguments))
            for call in message.tool_calls
        ]
        reasoning = message.reasoning_content if self._request.include_reasoning else ""
        return ChatChoice(
            index=completion.index,
            message=AssistantMessage(
                content=None if calls and not message.content else message.content,
                reasoning_content=reasoning or None,
                tool_calls=calls or None,
            ),
            finish_reason=self._finish_reason(completion.finish_reason, completion.stop_reason) or "abort",
            stop_reason=told_reason(completion.stop_reason, self._request),
            token_ids=completion.token_ids if self._request.return_token_ids else None,
            logits_processors_shadow=shadow_body(completion.logits_processors_shadow),
        )

    def choice(self, completion: CompletionOutput) -> PiecedObject:
        """Returns the choice of a whole completion, a `ChatChoice`."""
        members: dict[str, Pieces] = {}
        if completion.logprobs is not None:
            count = self._request.num_logprobs or 0
            members["logprobs"] = chat_logprobs_pieces(self._shown(completion.logprobs), count, self._tokenizer)
        if completion.logits_processors_trace is not None:
            members["logits_processors_trace"] = trace_pieces(completion.logits_processors_trace)
        if completion.logits_processors_outputs is not None:
            members["logits_processors_outputs"] = outputs_pieces(completion.logits_processors_outputs)
        return PiecedObject(self.read(completion), members)

    def chunk(self, delta: CompletionDelta) -> ChatChunkChoice | None:
        """Returns the chunk of a delta; None while its meaning is undecided, unless it has tokens to report."""
        finished = delta.finish_reason is not None
        message = self._read(delta.text, finished=finished)
        self._count(delta.token_ids)
        self._unsent.extend(delta)
        if not finished and message.is_empty and self._tokenizer.handles_text:
            return None
        unsent, self._unsent = self._unsent, CompletionOutput(self._index, "", [])
        choice = ChatChunkChoice(
            index=self._index,
            delta=self._delta(message),
            finish_reason=self._finish_reason(delta.finish_reason, delta.stop_reason),
            stop_reason=told_reason(delta.stop_reason, self._request),
            token_ids=unsent.token_ids if self._request.return_token_ids else None,
            logits_processors_outputs=unsent.logits_processors_outputs,
        )
        if unsent.logprobs is not None:
            positions = self._shown(unsent.logprobs)
            choice.logprobs = chat_logprobs(positions, self._request.num_logprobs or 0, self._tokenizer)
        if unsent.logits_processors_trace is not None:
            choice.logits_processors_trace = trace_body(unsent.logits_processors_trace)
        if finished and unsent.logits_processors_shadow is not None:
            choice.logits_processors_shadow = shadow_body(unsent.logits_processors_shadow)
        return choice

    def _shown(self, positions: Positions) -> Positions:
        return shown(positions, by_id=self._request.return_tokens_as_token_ids)

    def _count(self, token_ids: list[int]) -> None:
        if self._reads_reasoning:
            self._ends.extend(token_ids)

    def _read(self, text: str, *, finished: bool) -> MessageDelta:
        if self._parser is None:
            return MessageDelta(text)
        message = self._parser.push(text, finished=finished)
        return message if self._request.include_reasoning else replace(message, reasoning_content="")

    def _delta(self, message: MessageDelta) -> ChatDelta:
        calls = [
            ToolCallDelta(
                index=call.index,
                id=new_call_id() if call.name is not None else None,
                type="function" if call.name is not None else None,
                function=FunctionDelta(name=call.name, arguments=call.arguments),
            )
            for call in message.tool_calls
        ]
        other = bool(message.reasoning_content or calls)
        return ChatDelta(
            content=message.content if message.content or not other else None,
            reasoning_content=message.reasoning_content or None,
            tool_calls=calls or None,
        )

    def _finish_reason(self, reason: str | None, stop_reason: StopCause | None) -> str | None:
        called = self._parser is not None and self._parser.called_tools
        # After a processor has ended the answer, the client is not asked to run the calls.
        return "tool_calls" if called and reason == "stop" and not isinstance(stop_reason, dict) else reason


class ChatEvents:
    """Encoder of a chat's events, which counts the reported tokens."""

    def __init__(self, serving: Serving, generation: Generation, request: ChatCompletionRequest) -> None:
        self._serving = serving
        self._generation = generation
        self._request = request
        self._created = now()
        self._num_tokens = 0
        self._counts = request.continuous_usage
        indices = range(len(generation.completions))
        self._readers = [MessageReader(serving.engine, request, index) for index in indices]
        self._text_events = [TextEvent(partial(self._plain, index)) for index in indices]
        self._tells_text = not self._counts and all(reader.is_plain for reader in self._readers)

    def opening(self) -> bytes:
        """Returns one event per choice with its role; the first has the prompt's token ids if requested."""
        role = ChatDelta(role="assistant", content="")
        choices = [ChatChunkChoice(index=index, delta=role) for index in range(len(self._readers))]
        prompt = self._generation.prompt.token_ids if self._request.return_token_ids else None
        chunks = [self._chunk([choice], prompt if choice.index == 0 else None) for choice in choices]
        return b"".join(server_sent_event(chunk) for chunk in chunks)

    def of(self, _place: int, delta: CompletionDelta) -> bytes:
        """Returns the event of a delta; empty while its meaning is undecided."""
        self._num_tokens += len(delta.token_ids)
        if self._tells_text and delta.is_text:
            return self._text_events[delta.index](delta.text)
        choice = self._readers[delta.index].chunk(delta)
        return b"" if choice is None else server_sent_event(self._chunk([choice]))

    def usage(self) -> bytes:
        """Returns the usage event, which has no choices."""
        chunk = self._chunk([])
        chunk.usage = self._usage()
        return server_sent_event(chunk)

    def _plain(self, index: int, text: str) -> bytes:
        return server_sent_event(self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))]))

    def _chunk(self, choices: list[ChatChunkChoice], prompt_token_ids: list[int] | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._generation.request_id,
            created=self._created,
            model=self._serving.model,
            choices=choices,
            usage=self._usage() if self._counts else None,
            prompt_token_ids=prompt_token_ids,
        )

    def _usage(self) -> Usage:
        reasoning = self._serving.engine.message_parsers.reads_reasoning
        return usage_of(
            len(self._generation.prompt.token_ids),
            self._num_tokens,
            self._generation.num_cached_tokens,
            sum(reader.reasoning_tokens for reader in self._readers) if reasoning else None,
            self._generation.drafted,
        )


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
        if settled.params.prompt_logprobs is not None:
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
        rendered = await self.rendered(request, caller)
        return await inside(partial(engine.inputs.rendered_prompt, rendered, request.prompt_options))

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
            found = inputs.prompt(request.prompt_token_ids, "prompt_token_ids", request.prompt_options)
            return replace(found, is_chat=True)
        return inputs.chat_prompt(*self._conversation(request), request.prompt_options)

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


def chat_routes(
    engine: Engine, in_flight: RequestsInFlight, turns: EncodingTurns, watch: StreamWatch, route_class: type[APIRoute]
) -> APIRouter:
    """Returns the route that completes chats."""
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, 503), route_class=route_class)
    chat = ServingChat(engine)

    @router.post("/v1/chat/completions", response_model=ChatCompletionResponse)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Chat completion, plain or streamed."""
        record = record_of(request)
        record.adopt(body.request_id)
        hold = partial(in_flight.hold_answer, record)
        generation = await admitted(partial(chat.start, body), request, body.timeout, hold)
        record.admitted(generation.request_id, [generation])
        if body.stream:
            return EventStream(partial(chat.stream, generation, body), failed_events, [generation], watch)
        outputs = await results_unless_disconnected([generation], request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return PiecedAnswer(chat.response(outputs[0], body), record.request_id, turns, watch)

    return router
