"""The HTTP routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.engine.processor_states import ProcessorInfo
from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.event_stream import EventStream
from fastdeploy_lp.entrypoints.openai.extra_fields import ExtraFields
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest, CompletionResponse
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo, ErrorResponse
from fastdeploy_lp.entrypoints.openai.protocol.model import ModelCard, ModelList
from fastdeploy_lp.entrypoints.openai.protocol.processor import ProcessorCard, ProcessorCounters, ProcessorList
from fastdeploy_lp.entrypoints.openai.routes.embeddings import embedding_routes
from fastdeploy_lp.entrypoints.openai.serving_chat import ServingChat
from fastdeploy_lp.entrypoints.openai.serving_completion import ServingCompletion
from fastdeploy_lp.version import __version__

FAILURES: dict[int | str, dict[str, Any]] = {status: {"model": ErrorResponse} for status in (400, 404, 429, 500, 503)}


def build_app(engine: EngineClient, *, with_metrics: bool, allow_extra_fields: bool = False) -> FastAPI:
    """The application on a started engine."""
    body_route = ExtraFields().route_class() if allow_extra_fields else APIRoute
    app = FastAPI(title="fastdeploy_lp", version=__version__)
    errors.install(app)
    app.include_router(_completion_routes(engine, body_route))
    app.include_router(embedding_routes(engine, body_route))
    app.include_router(_processor_routes(engine))
    app.include_router(_server_routes(engine))
    if with_metrics:
        app.include_router(_metrics_route(engine))
    publish_parameter_schemas(app, engine)
    return app


def _completion_routes(engine: EngineClient, route_class: type[APIRoute]) -> APIRouter:
    router = APIRouter(responses=FAILURES, route_class=route_class)
    chat, completion = ServingChat(engine), ServingCompletion(engine)

    @router.post("/v1/chat/completions", response_model=ChatCompletionResponse)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Chat completion, plain or streamed."""
        generation = await chat.start(body)
        if body.stream:
            return EventStream(chat.stream(generation, body))
        outputs = await results_unless_disconnected([generation], request)
        return _json(chat.response(outputs[0], body)) if outputs else Response(status_code=CLIENT_CLOSED_REQUEST)

    @router.post("/v1/completions", response_model=CompletionResponse)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Text completion of one or many prompts, plain or streamed."""
        generations = await completion.start(body)
        if body.stream:
            return EventStream(completion.stream(generations, body))
        outputs = await results_unless_disconnected(generations, request)
        return _json(completion.response(outputs, body)) if outputs else Response(status_code=CLIENT_CLOSED_REQUEST)

    return router


def _processor_routes(engine: EngineClient) -> APIRouter:
    router = APIRouter(responses={404: {"model": ErrorResponse}})

    @router.get("/v1/logits_processors")
    async def logits_processors() -> ProcessorList:
        """The declared logits processors in the order of execution, with their parameters, state and counters."""
        return ProcessorList(data=[_processor_card(info) for info in engine.processors.describe()])

    @router.post("/v1/logits_processors/{name}/reset")
    async def reset(name: str) -> ProcessorCard:
        """Put a quarantined logits processor back into service."""
        cards = {info.name: info for info in engine.processors.describe()}
        if name not in cards:
            known = ", ".join(cards) or "none"
            reason = f"no logits processor of the name {name!r} is declared; declared are {known}"
            raise errors.NotFoundError(reason, None, "logits_processor_not_found")
        await engine.reset_processor(name)
        return _processor_card(next(info for info in engine.processors.describe() if info.name == name))

    return router


def _server_routes(engine: EngineClient) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The served model."""
        config = engine.fd_config.model_config
        return ModelList(data=[ModelCard(id=config.served_model_name, max_model_len=config.max_model_len)])

    @router.get("/health", responses={503: {"model": ErrorResponse}})
    async def health() -> Response:
        """200 while the worker is up, else 503."""
        if engine.healthy:
            return Response(status_code=HTTPStatus.OK)
        info = ErrorInfo(message="the worker process is not running", type="server_error", code="engine_down")
        return JSONResponse(ErrorResponse(error=info).model_dump(), HTTPStatus.SERVICE_UNAVAILABLE)

    return router


def _metrics_route(engine: EngineClient) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics, where they have no port of their own."""
        return Response(generate_latest(engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def publish_parameter_schemas(app: FastAPI, engine: EngineClient) -> None:
    """Put the declared processors' parameter schemas into `/openapi.json`, each under the processor's name."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = generate()["components"]["schemas"]
            for info in engine.processors.describe():
                if info.parameters is not None:
                    schemas[f"logits_processors.{info.name}"] = info.parameters
        return generate()

    # FastAPI's documented way to extend the schema.
    app.openapi = openapi  # type: ignore[method-assign]


def _processor_card(info: ProcessorInfo) -> ProcessorCard:
    stats = info.stats
    counters = {name: getattr(stats, name) for name in ProcessorCounters.model_fields}
    return ProcessorCard(
        name=info.name,
        dialect=info.dialect,
        source=info.source,
        spec=info.spec,
        order=info.order,
        argmax_invariant=info.argmax_invariant,
        parameters=info.parameters,
        description=info.description,
        state=stats.state,
        last_error=stats.last_error,
        counters=ProcessorCounters(**counters),
    )


def _json(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")
