"""POST /v1/messages and POST /v1/messages/count_tokens, in Anthropic's form: chat completions with other names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST, describe
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.answer import (
    MessageResponse,
    MessageUsage,
    TokenCount,
    new_message_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import MessagesError
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces, trace_pieces
from fastdeploy_lp.entrypoints.openai.routes.chat import ServingChat
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, admitted, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.streaming.chat import MessageReader
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import EventStream, EventWriter, StreamWatch
from fastdeploy_lp.entrypoints.openai.streaming.messages import MessageEvents, blocks_of, named_event, stop_of
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.entrypoints.openai.translation.messages import TranslatedBody, translated
from fastdeploy_lp.request.outputs import RequestOutput

# The argument of the builtin that bounds reasoning.
BUDGET = "thinking_budget"


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
            BUDGET in (each.parameters or {}).get("properties", {}) for each in engine.processors.describe()
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
        args = body.logits_processors_args or {}
        if budget is None or not self._takes_budgets or body.logits_processors is not None or BUDGET in args:
            return body
        return body.model_copy(update={"logits_processors_args": {**args, BUDGET: budget}})

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
