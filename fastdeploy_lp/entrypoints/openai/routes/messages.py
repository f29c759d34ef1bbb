"""POST /v1/messages and /v1/messages/count_tokens in Anthropic's form: chat completions with other names and events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST, describe
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.answer import (
    ContentBlock,
    Details,
    MessageResponse,
    MessageUsage,
    StopReason,
    Text,
    ThinkingText,
    TokenCount,
    ToolUse,
    new_message_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import MessagesError
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.events import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    StopDelta,
    TextDelta,
    ThinkingDelta,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    AssistantMessage,
    ChatChunkChoice,
    ChatCompletionRequest,
    ChatDelta,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import THINKING_BUDGET
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces, trace_pieces
from fastdeploy_lp.entrypoints.openai.routes.chat import MessageReader, ServingChat
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, admitted, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import EventStream, EventWriter, StreamWatch, TextEvent
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.entrypoints.openai.translation.messages import TranslatedBody, translated
from fastdeploy_lp.request.outputs import CompletionDelta, RequestOutput, StopCause, joined_outputs

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "abort": "abort",
}


def named_event(event: MessageEvent) -> bytes:
    """Returns one encoded event, with its type as its name."""
    return f"event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()


def stop_of(serving: Serving, finish_reason: str, stop_reason: StopCause | None) -> StopDelta:
    """Returns why a message ended; a token of `stop_token_ids` is reported by its text, a processor by its name."""
    if isinstance(stop_reason, dict):
        return StopDelta(stop_reason="end_turn", stop_sequence=None, logits_processors_finish=stop_reason)
    if stop_reason is not None and finish_reason == "stop":
        text = stop_reason if isinstance(stop_reason, str) else serving.engine.tokenizer.token_text(stop_reason)
        return StopDelta(stop_reason="stop_sequence", stop_sequence=text)
    return StopDelta(stop_reason=STOP_REASONS[finish_reason], stop_sequence=None)


def blocks_of(message: AssistantMessage, signature: str, *, shows_thinking: bool) -> list[ContentBlock]:
    """Returns the blocks of a whole message: reasoning, text and calls."""
    blocks: list[ContentBlock] = []
    if message.reasoning_content:
        thinking = message.reasoning_content if shows_thinking else ""
        blocks.append(ThinkingText(thinking=thinking, signature=signature))
    if message.content:
        blocks.append(Text(text=message.content))
    for call in message.tool_calls or []:
        name = call.function.name
        blocks.append(ToolUse(id=tool_use_id(call.id), name=name, input=input_of(call.function.arguments)))
    return blocks


def input_of(arguments: str) -> dict[str, Any]:
    """Returns the object that the model wrote; of JSON that the token limit cut, the members before the cut."""
    try:
        read = from_json(arguments, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def tool_use_id(call_id: str) -> str:
    """Returns the id of a call in the form of the Messages API."""
    return f"toolu_{call_id.removeprefix('call_')}"


class OpenBlocks:
    """The blocks of a streamed message: each delta belongs to the last one, or begins another one."""

    def __init__(self, signature: str, *, shows_thinking: bool) -> None:
        self._signature = signature
        self._shows_thinking = shows_thinking
        self._open: str | None = None
        self.index = -1

    @property
    def in_text(self) -> bool:
        """True if more text belongs to the last block."""
        return self._open == "text"

    def of(self, delta: ChatDelta) -> list[BlockEvent]:
        """Returns the events of a delta."""
        events: list[BlockEvent] = []
        if delta.reasoning_content:
            if self._open != "thinking":
                events += self._begin(ThinkingText(thinking="", signature=""))
            if self._shows_thinking:
                events.append(self._delta(ThinkingDelta(thinking=delta.reasoning_content)))
        if delta.content:
            if not self.in_text:
                events += self._begin(Text(text=""))
            events.append(self._delta(TextDelta(text=delta.content)))
        for call in delta.tool_calls or []:
            if call.id is not None:
                events += self._begin(ToolUse(id=tool_use_id(call.id), name=call.function.name or "", input={}))
            if call.function.arguments:
                events.append(self._delta(InputDelta(partial_json=call.function.arguments)))
        return events

    def end(self) -> list[BlockEvent]:
        """Returns the events that end the last block, if there is one."""
        if self._open is None:
            return []
        signed = [self._delta(SignatureDelta(signature=self._signature))] if self._open == "thinking" else []
        self._open = None
        return [*signed, BlockStop(index=self.index)]

    def _begin(self, block: ContentBlock) -> list[BlockEvent]:
        ended = self.end()
        self.index += 1
        self._open = block.type
        return [*ended, BlockStart(index=self.index, content_block=block)]

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta) -> BlockDelta:
        return BlockDelta(index=self.index, delta=delta)


class MessageEvents:
    """Encoder of the events of a streamed message, which counts the reported tokens."""

    def __init__(
        self,
        serving: Serving,
        generation: Generation,
        request: ChatCompletionRequest,
        message_id: str,
        *,
        shows_thinking: bool = True,
    ) -> None:
        self._serving = serving
        self._generation = generation
        self._request = request
        self._message_id = message_id
        self._num_tokens = 0
        self._reader = MessageReader(serving.engine, request, 0)
        self._blocks = OpenBlocks(message_id, shows_thinking=shows_thinking)
        self._text_event: tuple[int, TextEvent] | None = None
        self._unsent = Details()

    def opening(self) -> bytes:
        """Returns the event of the empty message, which has the prompt's token ids if requested, and a ping."""
        prompt = self._generation.prompt.token_ids
        message = MessageResponse(
            id=self._message_id,
            model=self._serving.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(),
            prompt_token_ids=prompt if self._request.return_token_ids else None,
        )
        return named_event(MessageStart(message=message)) + named_event(Ping())

    def of(self, _place: int, delta: CompletionDelta) -> bytes:
        """Returns the events of a delta; empty while its meaning is undecided."""
        self._num_tokens += len(delta.token_ids)
        if self._reader.is_plain and delta.is_text and self._blocks.in_text:
            return self._plain(delta.text) if delta.text else b""
        choice = self._reader.chunk(delta)
        return b"" if choice is None else self._of_choice(choice)

    def _of_choice(self, choice: ChatChunkChoice) -> bytes:
        events: list[BlockEvent | MessageDelta] = [*self._blocks.of(choice.delta)]
        if choice.finish_reason is not None:
            stop = stop_of(self._serving, choice.finish_reason, choice.stop_reason)
            events += [*self._blocks.end(), MessageDelta(delta=stop, usage=self._usage())]
        self._tell_details(choice, events)
        encoded = b"".join(named_event(event) for event in events)
        return encoded if choice.finish_reason is None else encoded + named_event(MessageStop())

    def _tell_details(self, choice: ChatChunkChoice, events: list[BlockEvent | MessageDelta]) -> None:
        """Adds the details of the choice's tokens to the last event; without an event, they wait for the next one."""
        unsent = self._unsent
        if choice.token_ids:
            unsent.token_ids = [*(unsent.token_ids or []), *choice.token_ids]
        if choice.logits_processors_trace:
            traced = [*(unsent.logits_processors_trace or []), *choice.logits_processors_trace]
            unsent.logits_processors_trace = traced
        unsent.logits_processors_shadow = choice.logits_processors_shadow
        unsent.logits_processors_outputs = joined_outputs(
            unsent.logits_processors_outputs, choice.logits_processors_outputs
        )
        if events:
            for name in Details.model_fields:
                setattr(events[-1], name, getattr(unsent, name))
            self._unsent = Details()

    def _plain(self, text: str) -> bytes:
        """Returns the event of more text; all but the text is encoded once a block."""
        index = self._blocks.index
        if self._text_event is None or self._text_event[0] != index:
            self._text_event = (index, TextEvent(partial(self._text_delta, index)))
        return self._text_event[1](text)

    def _text_delta(self, index: int, text: str) -> bytes:
        return named_event(BlockDelta(index=index, delta=TextDelta(text=text)))

    def _usage(self) -> MessageUsage:
        reads = self._serving.engine.message_parsers.reads_reasoning
        return MessageUsage.of(
            len(self._generation.prompt.token_ids),
            self._generation.num_cached_tokens,
            self._num_tokens,
            self._reader.reasoning_tokens if reads else None,
        )


# The argument of the builtin that bounds reasoning.


@dataclass(frozen=True)
class RunningMessage:
    """A message that the engine generates. chat: the chat completion that it is."""

    generation: Generation
    chat: TranslatedBody
    shows_thinking: bool

    @property
    def id(self) -> str:
        """The message's id."""
        return self.generation.request_id


class ServingMessages:
    """Messages on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)
        self._chat = ServingChat(engine)
        self._takes_budgets = any(
            THINKING_BUDGET in (each.parameters or {}).get("properties", {}) for each in engine.processors.describe()
        )

    async def start(self, body: MessagesRequest, caller: Caller) -> RunningMessage:
        """Admits a request; raises InvalidRequestError with the body's names, and the other errors of a chat."""
        inside = self._serving.inside(caller)
        chat = await inside(partial(translated, self._with_budget(body)))
        try:
            generation = await self._chat.start(chat.chat, caller, new_message_id(body.request_id))
        except InvalidRequestError as error:
            raise chat.as_sent(error) from None
        shows_thinking = body.thinking is None or body.thinking.display != "omitted"
        return RunningMessage(generation, chat, shows_thinking)

    async def count(self, body: CountTokensRequest, caller: Caller) -> int:
        """Returns the number of tokens of a prompt, which may be longer than the context; raises as `start`."""
        chat = await self._serving.inside(caller)(partial(translated, body))
        try:
            return await self._chat.count(chat.chat, caller)
        except InvalidRequestError as error:
            raise chat.as_sent(error) from None

    def _with_budget(self, body: MessagesRequest) -> MessagesRequest:
        """Returns the body with the budget of thinking as the argument of the processor that enforces it, if any."""
        budget = body.thinking.budget_tokens if body.thinking is not None else None
        own = body.thinking_token_budget is not None or THINKING_BUDGET in (body.logits_processors_args or {})
        if budget is None or own or not self._takes_budgets or body.logits_processors is not None:
            return body
        return body.model_copy(update={"thinking_token_budget": budget})

    def response(self, output: RequestOutput, message: RunningMessage) -> PiecedObject:
        """Returns the body of a plain answer, a `MessageResponse`."""
        request, completion = message.chat.chat, output.outputs
        reader = MessageReader(self._serving.engine, request, 0)
        choice = reader.read(completion)
        stop = stop_of(self._serving, choice.finish_reason, choice.stop_reason)
        reads_reasoning = self._serving.engine.message_parsers.reads_reasoning
        response = MessageResponse(
            id=message.id,
            model=self._serving.model,
            content=blocks_of(choice.message, message.id, shows_thinking=message.shows_thinking),
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            logits_processors_finish=stop.logits_processors_finish,
            usage=MessageUsage.of(
                len(output.prompt_token_ids),
                output.num_cached_tokens,
                len(completion.token_ids),
                reader.reasoning_tokens if reads_reasoning else None,
            ),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
            token_ids=choice.token_ids,
            logits_processors_shadow=choice.logits_processors_shadow,
        )
        members: dict[str, Pieces] = {}
        if completion.logits_processors_trace is not None:
            members["logits_processors_trace"] = trace_pieces(completion.logits_processors_trace)
        if completion.logits_processors_outputs is not None:
            members["logits_processors_outputs"] = outputs_pieces(completion.logits_processors_outputs)
        return PiecedObject(response, members)

    async def stream(self, message: RunningMessage, out: EventWriter) -> None:
        """Sends server-sent events up to message_stop; raises the request's error."""
        generation, chat = message.generation, message.chat.chat
        events = MessageEvents(self._serving, generation, chat, message.id, shows_thinking=message.shows_thinking)
        await out.send(events.opening())
        await out.send_deltas([generation], events.of)


def _failed_event(request_id: str, error: Exception) -> bytes:
    return named_event(MessagesError.of(*describe(error), request_id))


def messages_routes(
    engine: Engine, turns: EncodingTurns, watch: StreamWatch, route_class: type[APIRoute] = APIRoute
) -> APIRouter:
    """Returns the routes of the Messages API."""
    responses = failures(400, 404, 408, 413, 429, CLIENT_CLOSED_REQUEST, 503, body=MessagesError)
    router = APIRouter(responses=responses, route_class=route_class)
    serving = ServingMessages(engine)

    @router.post("/v1/messages", response_model=MessageResponse)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Anthropic's messages, plain or streamed."""
        record = record_of(request)
        record.adopt(body.request_id)
        message = await admitted(partial(serving.start, body), request, body.timeout)
        record.admitted(message.id, [message.generation])
        if body.stream:
            failed = partial(_failed_event, record.request_id)
            return EventStream(partial(serving.stream, message), failed, [message.generation], watch)
        outputs = await results_unless_disconnected([message.generation], request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return PiecedAnswer(serving.response(outputs[0], message), record.request_id, turns, watch)

    @router.post("/v1/messages/count_tokens", response_model=TokenCount)
    async def count_tokens(body: CountTokensRequest, request: Request) -> TokenCount:
        """The number of tokens of the prompt that a message would have."""
        return TokenCount(input_tokens=await admitted(partial(serving.count, body), request, None))

    return router
