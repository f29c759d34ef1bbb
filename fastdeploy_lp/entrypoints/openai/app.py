"""The HTTP routes."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.body.extra_fields import ExtraFields
from fastdeploy_lp.entrypoints.openai.body.shape import bounded_route
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.middleware.layers import behind_middleware
from fastdeploy_lp.entrypoints.openai.middleware.request_record import HttpMetrics, RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures, publish_schema
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest, CompletionResponse
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.responses.store import ResponseStore
from fastdeploy_lp.entrypoints.openai.routes.abort import abort_routes
from fastdeploy_lp.entrypoints.openai.routes.chat import ServingChat
from fastdeploy_lp.entrypoints.openai.routes.completions import ServingCompletion
from fastdeploy_lp.entrypoints.openai.routes.embeddings import embedding_routes
from fastdeploy_lp.entrypoints.openai.routes.messages import messages_routes
from fastdeploy_lp.entrypoints.openai.routes.pooling import pooling_routes
from fastdeploy_lp.entrypoints.openai.routes.processors import processor_routes
from fastdeploy_lp.entrypoints.openai.routes.ranking import ranking_routes
from fastdeploy_lp.entrypoints.openai.routes.responses import (
    ServingResponses,
    responses_routes,
    stored_response_routes,
)
from fastdeploy_lp.entrypoints.openai.routes.server import metrics_route, model_routes, server_routes
from fastdeploy_lp.entrypoints.openai.routes.tokenization import tokenization_routes
from fastdeploy_lp.entrypoints.openai.routes.upload_permission import UploadPermission
from fastdeploy_lp.entrypoints.openai.routes.uploads import upload_routes
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.openai.serving import admitted
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import (
    EventStream,
    StreamWatch,
    failed_events,
    stalled_streams,
)
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore
from fastdeploy_lp.entrypoints.playground.routes import playground_routes
from fastdeploy_lp.plugins.io_processor import NamedIOProcessor
from fastdeploy_lp.version import __version__


def build_app(
    engine: Engine,
    args: ServerArgs,
    io_processor: NamedIOProcessor | None = None,
    policies: Policies | None = None,
) -> ASGIApp:
    """Returns the application with its middleware; routes answer with an error until the engine has started."""
    in_flight = RequestsInFlight()
    turns = EncodingTurns()
    watch = StreamWatch(args.stream_timeout, args.max_unread_tokens, stalled_streams(engine.metrics.registry))
    body_route = bounded_route(engine, takes_room=True, all_errors=args.allow_extra_fields)
    if args.allow_extra_fields:
        body_route = ExtraFields().route_class(body_route)
    app = FastAPI(title="fastdeploy_lp", version=__version__, responses=failures())
    errors.install(app)

    async def require_started() -> None:
        engine.require_started()

    async def may_see_all_processors(request: Request) -> None:
        if policies is not None and policies.current.secret and not record_of(request).sees_secrets:
            raise errors.OperatorOnlyError

    uploads = UploadStore(args.upload_store) if args.allow_uploads else None
    permission = UploadPermission(uploads, restricted=policies is not None)
    responses = ServingResponses(engine, ResponseStore(args.response_store, args.response_store_max_bytes))
    for router in (
        _completion_routes(engine, body_route, in_flight, turns, watch),
        responses_routes(responses, in_flight, turns, watch, body_route),
        stored_response_routes(responses),
        messages_routes(engine, turns, watch, body_route),
        embedding_routes(engine, turns, watch, body_route),
        ranking_routes(engine, turns, watch, body_route),
        pooling_routes(engine, io_processor, in_flight, turns, watch, body_route),
        tokenization_routes(engine),
        abort_routes(engine, in_flight),
        upload_routes(engine, permission),
        processor_routes(engine, permission),
        model_routes(engine),
    ):
        app.include_router(router, dependencies=[Depends(require_started)])
    app.include_router(server_routes(engine))
    if args.metrics_port in (None, args.port):
        app.include_router(
            metrics_route(engine, vllm_names=args.vllm_metrics), dependencies=[Depends(may_see_all_processors)]
        )
    if args.playground:
        app.include_router(playground_routes())
    publish_schema(app, engine.processors, lambda: policies.current.secret if policies is not None else frozenset())
    return behind_middleware(app, args, in_flight, HttpMetrics(engine.metrics.registry), policies, uploads)


def _completion_routes(
    engine: Engine, route_class: type[APIRoute], in_flight: RequestsInFlight, turns: EncodingTurns, watch: StreamWatch
) -> APIRouter:
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, 503), route_class=route_class)
    chat, completion = ServingChat(engine), ServingCompletion(engine)

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

    @router.post("/v1/completions", response_model=CompletionResponse)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Text completion of one or many prompts, plain or streamed."""
        record = record_of(request)
        record.adopt(body.request_id)
        hold = partial(in_flight.hold_answer, record)
        generations = await admitted(partial(completion.start, body), request, body.timeout, hold)
        record.admitted(shared_id(generations[0].request_id), generations)
        if body.stream:
            return EventStream(partial(completion.stream, generations, body), failed_events, generations, watch)
        outputs = await results_unless_disconnected(generations, request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return PiecedAnswer(completion.response(outputs, body), record.request_id, turns, watch)

    return router
