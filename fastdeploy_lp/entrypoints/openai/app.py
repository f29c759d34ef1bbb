"""The HTTP application: its routes and middleware."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request
from starlette.types import ASGIApp

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.body.extra_fields import ExtraFields
from fastdeploy_lp.entrypoints.openai.body.shape import bounded_route
from fastdeploy_lp.entrypoints.openai.middleware.layers import behind_middleware
from fastdeploy_lp.entrypoints.openai.middleware.request_record import HttpMetrics, RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures, publish_schema
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.responses.store import ResponseStore
from fastdeploy_lp.entrypoints.openai.routes.abort import abort_routes
from fastdeploy_lp.entrypoints.openai.routes.chat import chat_routes
from fastdeploy_lp.entrypoints.openai.routes.completions import completion_routes
from fastdeploy_lp.entrypoints.openai.routes.embeddings import embedding_routes
from fastdeploy_lp.entrypoints.openai.routes.messages import messages_routes
from fastdeploy_lp.entrypoints.openai.routes.pooling import pooling_routes
from fastdeploy_lp.entrypoints.openai.routes.processors import processor_routes
from fastdeploy_lp.entrypoints.openai.routes.ranking import ranking_routes
from fastdeploy_lp.entrypoints.openai.routes.responses import ServingResponses, responses_routes, stored_response_routes
from fastdeploy_lp.entrypoints.openai.routes.server import metrics_route, model_routes, server_routes
from fastdeploy_lp.entrypoints.openai.routes.tokenization import tokenization_routes
from fastdeploy_lp.entrypoints.openai.routes.upload_permission import UploadPermission
from fastdeploy_lp.entrypoints.openai.routes.uploads import upload_routes
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.openai.serving import started
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch, stalled_streams
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns
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

    async def may_see_all_processors(request: Request) -> None:
        if policies is not None and policies.current.secret and not record_of(request).sees_secrets:
            raise errors.OperatorOnlyError

    uploads = UploadStore(args.upload_store) if args.allow_uploads else None
    permission = UploadPermission(uploads, restricted=policies is not None)
    responses = ServingResponses(engine, ResponseStore(args.response_store, args.response_store_max_bytes))
    once_started = [Depends(started(engine))]
    for router in (
        chat_routes(engine, in_flight, turns, watch, body_route),
        completion_routes(engine, in_flight, turns, watch, body_route),
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
        app.include_router(router, dependencies=once_started)
    app.include_router(server_routes(engine))
    if args.metrics_port in (None, args.port):
        app.include_router(
            metrics_route(engine, vllm_names=args.vllm_metrics), dependencies=[Depends(may_see_all_processors)]
        )
    if args.playground:
        app.include_router(playground_routes())
    publish_schema(app, engine.processors, lambda: policies.current.secret if policies is not None else frozenset())
    return behind_middleware(app, args, in_flight, HttpMetrics(engine.metrics.registry), policies, uploads)
