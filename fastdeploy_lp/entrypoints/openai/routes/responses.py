"""POST /v1/responses, and the responses that were stored."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi import Response as HTTPResponse
from fastapi.routing import APIRoute
from pydantic_core import PydanticSerializationError

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.body.shape import LIGHT_BODY
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST, NotFoundError, describe
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces
from fastdeploy_lp.entrypoints.openai.logprobs import content_logprobs_pieces, shown
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.response_items import (
    ITEMS,
    InputItem,
    InputItemList,
    as_input,
    as_stored,
)
from fastdeploy_lp.entrypoints.openai.protocol.responses import (
    Conversation,
    DeletedResponse,
    InputTokens,
    InputTokensRequest,
    Response,
    ResponsesRequest,
    new_response_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces, trace_pieces
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.responses.background import BackgroundResponses
from fastdeploy_lp.entrypoints.openai.responses.store import ResponseStore, StoredResponse
from fastdeploy_lp.entrypoints.openai.routes.chat import MessageReader, ServingChat
from fastdeploy_lp.entrypoints.openai.routes.response_events import ResponseEvents, end, fail, in_pieces, output_of
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, admitted, results_unless_disconnected, usage_of
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import EventStream, EventWriter, StreamWatch
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.entrypoints.openai.translation.responses import as_sent, chat_of, items_of, prompt_chat_of
from fastdeploy_lp.request.outputs import RequestOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Begun:
    """An admitted request. items: JSON of the conversation's items, the request's own included."""

    request: ResponsesRequest
    chat: ChatCompletionRequest
    items: bytes
    response: Response
    generation: Generation


class ServingResponses:
    """Responses of one engine, which are kept in `store`."""

    def __init__(self, engine: Engine, store: ResponseStore) -> None:
        self._serving = Serving(engine)
        self._chat = ServingChat(engine)
        self._store = store
        self.background = BackgroundResponses()

    async def start(self, request: ResponsesRequest, owner: str, caller: Caller) -> Begun:
        """Admits a request; raises as `ServingChat.start`, and NotFoundError for an unknown `previous_response_id`."""
        caller, before = await self._before(request, owner, caller)
        chat, items = await self._serving.inside(caller)(partial(_prepared, request, before))
        response = Response.to(request, new_response_id(request.request_id), self._serving.model)
        try:
            generation = await self._chat.start(chat, caller, response.id)
        except InvalidRequestError as error:
            raise as_sent(error) from None
        if chat.return_token_ids:
            response.prompt_token_ids = generation.prompt.token_ids
        return Begun(request, chat, items, response, generation)

    async def count(self, request: InputTokensRequest, owner: str, caller: Caller) -> InputTokens:
        """Returns the number of tokens of a conversation, which may exceed the context; raises as `start` does."""
        caller, before = await self._before(request, owner, caller)
        try:
            chat = await self._serving.inside(caller)(partial(prompt_chat_of, request, before))
            return InputTokens(input_tokens=await self._chat.count(chat, caller))
        except InvalidRequestError as error:
            raise as_sent(error) from None

    async def whole(self, begun: Begun, owner: str, output: RequestOutput) -> PiecedObject:
        """Stores and returns the response to a finished request."""
        (completion,), response, tokenizer = output.completions, begun.response, self._serving.engine.tokenizer
        reader = MessageReader(self._serving.engine, begun.chat, 0)
        choice = reader.read(completion)
        usage = self._usage(begun, len(completion.token_ids), reader)
        status = end(response, choice.finish_reason, usage)
        response.output = output_of(choice.message, status)
        response.stop_reason = choice.stop_reason
        response.token_ids = choice.token_ids
        response.logits_processors_shadow = choice.logits_processors_shadow
        response.logits_processors_outputs = completion.logits_processors_outputs
        await self._keep(begun, owner)
        logprobs, members = None, dict[str, Pieces]()
        if completion.logprobs is not None:
            positions = shown(completion.logprobs, by_id=begun.request.return_tokens_as_token_ids)
            logprobs = content_logprobs_pieces(positions, begun.request.top_logprobs or 0, tokenizer)
        if completion.logits_processors_trace is not None:
            members["logits_processors_trace"] = trace_pieces(completion.logits_processors_trace)
        if completion.logits_processors_outputs is not None:
            members["logits_processors_outputs"] = outputs_pieces(completion.logits_processors_outputs)
        return in_pieces(response, logprobs, members)

    def events(self, begun: Begun) -> ResponseEvents:
        """Returns the encoder of a streamed response."""
        return ResponseEvents(begun.response, MessageReader(self._serving.engine, begun.chat, 0))

    async def stream(self, begun: Begun, owner: str, events: ResponseEvents, out: EventWriter) -> None:
        """Sends server-sent events up to the stored response; raises the request's error."""
        await out.send(events.opening())
        await out.send_deltas([begun.generation], events.of)
        await out.send(events.closing(self._usage(begun, events.num_tokens, events.reader)))
        await self._keep(begun, owner)
        await out.send(events.ending())

    async def finish(self, begun: Begun, owner: str) -> None:
        """Waits for a request in the background, and stores its response."""
        try:
            output = await begun.generation.result()
            # The answer that a client fetches later has no long members.
            await self.whole(begun, owner, output)
        except Exception as error:  # noqa: BLE001 - no client waits; the response reports the error
            fail(begun.response, *describe(error))
            await self._keep(begun, owner)
        finally:
            begun.generation.close()

    async def get(self, response_id: str, owner: str) -> bytes:
        """Returns the JSON of a running or stored response; raises NotFoundError."""
        running = self.background.get(response_id, owner)
        if running is not None:
            return running.response.model_dump_json().encode()
        return (await self._stored(response_id, owner)).response

    async def cancel(self, response_id: str, owner: str) -> bytes:
        """Ends a response in the background, and returns it; raises InvalidRequestError for others."""
        await self.background.cancel(response_id, owner)
        stored = (await self._stored(response_id, owner)).response
        if not msgspec.json.decode(stored, type=_Background).background:
            raise InvalidRequestError("response_id", "only a response with background: true can be cancelled")
        return stored

    async def input_items(self, response_id: str, owner: str) -> list[dict[str, object]]:
        """Returns the items of the conversation up to a stored response; raises NotFoundError."""
        stored = await self._stored(response_id, owner)
        items: list[dict[str, object]] = json.loads(stored.items)
        return items

    async def delete(self, response_id: str, owner: str) -> None:
        """Ends and drops a response; raises NotFoundError."""
        await self.background.cancel(response_id, owner)
        if not await self._store.delete(response_id, owner):
            raise _not_found(response_id, "response_id")

    async def _before(self, request: Conversation, owner: str, caller: Caller) -> tuple[Caller, list[InputItem]]:
        """Returns the items of the conversation that the request continues, and the caller for that much work."""
        if request.previous_response_id is None:
            return caller, []
        found = await self._store.get(request.previous_response_id, owner)
        if found is None:
            raise _not_found(request.previous_response_id, "previous_response_id")
        caller = replace(caller, heavy=caller.heavy or found.num_bytes > LIGHT_BODY)
        return caller, await self._serving.inside(caller)(partial(_conversation, found))

    async def _stored(self, response_id: str, owner: str) -> StoredResponse:
        found = await self._store.get(response_id, owner)
        if found is None:
            raise _not_found(response_id, "response_id")
        return found

    async def _keep(self, begun: Begun, owner: str) -> None:
        """Stores a finished response, if the client did not ask not to, without its long members."""
        if not begun.response.store:
            return
        content = begun.response.model_dump_json(exclude={"logits_processors_trace"}).encode()
        if not await self._store.put(begun.response.id, owner, StoredResponse(content, begun.items)):
            logger.warning(
                "the response %s is larger than --response-store-max-bytes, and not stored", begun.response.id
            )
            begun.response.store = False

    def _usage(self, begun: Begun, num_tokens: int, reader: MessageReader) -> Usage:
        reasoning = self._serving.engine.message_parsers.reads_reasoning
        prompt, cached = begun.generation.prompt, begun.generation.num_cached_tokens
        reasoning_tokens = reader.reasoning_tokens if reasoning else None
        return usage_of(len(prompt.token_ids), num_tokens, cached, reasoning_tokens, begun.generation.drafted)


class _Background(msgspec.Struct):
    """The field of a stored response that records whether it was requested in the background."""

    background: bool


def _not_found(response_id: str, param: str) -> NotFoundError:
    reason = f"there is no response {response_id[:200]!r}: it was not stored, was dropped, or is another client's"
    return NotFoundError(reason, param, "response_not_found")


def _prepared(request: ResponsesRequest, before: list[InputItem]) -> tuple[ChatCompletionRequest, bytes]:
    _require_unicode(request)
    return chat_of(request, before), as_stored([*before, *items_of(request.input)])


def _require_unicode(request: ResponsesRequest) -> None:
    """Raises InvalidRequestError for a field with half a surrogate pair: answers repeat the fields."""
    try:
        request.model_dump_json()
    except PydanticSerializationError:
        for name in type(request).model_fields:
            try:
                request.model_dump_json(include={name})
            except PydanticSerializationError:
                raise InvalidRequestError(name, "no valid Unicode: surrogates not allowed") from None
        raise


def _conversation(stored: StoredResponse) -> list[InputItem]:
    return [*ITEMS.validate_json(stored.items), *as_input(Response.model_validate_json(stored.response).output)]


def responses_routes(
    serving: ServingResponses,
    in_flight: RequestsInFlight,
    turns: EncodingTurns,
    watch: StreamWatch,
    route_class: type[APIRoute] = APIRoute,
) -> APIRouter:
    """Returns the routes that generate responses, and count their tokens."""
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, 503), route_class=route_class)

    @router.post("/v1/responses", response_model=Response)
    async def create(body: ResponsesRequest, request: Request) -> HTTPResponse:
        """Response to a conversation, plain, streamed, or in the background."""
        record = record_of(request)
        record.adopt(body.request_id)
        hold = partial(in_flight.hold_answer, record)
        begun = await admitted(partial(serving.start, body, record.key), request, body.timeout, hold)
        record.admitted(begun.response.id, [begun.generation])
        if body.stream:
            events = serving.events(begun)
            tell = partial(serving.stream, begun, record.key, events)
            return EventStream(tell, lambda error: events.failed(*describe(error)), [begun.generation], watch)
        if body.background:
            running = begun.response.model_dump_json()
            finish = serving.finish(begun, record.key)
            task = serving.background.add(record.key, begun.response, begun.generation, finish)
            in_flight.outlast(record, task)
            return HTTPResponse(running, media_type="application/json")
        outputs = await results_unless_disconnected([begun.generation], request)
        if not outputs:
            return HTTPResponse(status_code=CLIENT_CLOSED_REQUEST)
        return PiecedAnswer(await serving.whole(begun, record.key, outputs[0]), record.request_id, turns, watch)

    @router.post("/v1/responses/input_tokens")
    async def input_tokens(body: InputTokensRequest, request: Request) -> InputTokens:
        """Number of tokens of a conversation."""
        return await admitted(partial(serving.count, body, record_of(request).key), request, None)

    return router


def stored_response_routes(serving: ServingResponses) -> APIRouter:
    """Returns the routes of responses that were stored or are generated in the background."""
    router = APIRouter(responses=failures(400, 404, 503))

    @router.get("/v1/responses/{response_id}", response_model=Response)
    async def retrieve(response_id: str, request: Request, stream: bool = False) -> HTTPResponse:
        """A response, by id."""
        if stream:
            raise InvalidRequestError("stream", "only false is allowed: a response is streamed once, by its request")
        return HTTPResponse(await serving.get(response_id, record_of(request).key), media_type="application/json")

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, request: Request) -> DeletedResponse:
        """Drops a response."""
        await serving.delete(response_id, record_of(request).key)
        return DeletedResponse(id=response_id)

    @router.post("/v1/responses/{response_id}/cancel", response_model=Response)
    async def cancel(response_id: str, request: Request) -> HTTPResponse:
        """Ends a response in the background with the output so far."""
        return HTTPResponse(await serving.cancel(response_id, record_of(request).key), media_type="application/json")

    @router.get("/v1/responses/{response_id}/input_items")
    async def input_items(
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> InputItemList:
        """The items of the conversation up to a response, in pages."""
        items = await serving.input_items(response_id, record_of(request).key)
        try:
            return InputItemList.page(items, after, limit, descending=order == "desc")
        except ValueError:
            raise InvalidRequestError("after", f"{after!r} is the id of none of the items") from None

    return router
