"""Status routes of the server: health, load, version, models and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.metrics import VLLMNames
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.server import ModelCard, ModelList, ServerLoad, ServerVersion
from fastdeploy_lp.version import __version__


def model_routes(engine: Engine) -> APIRouter:
    """Returns the routes of the served model's names, in a list and by id."""
    router = APIRouter(responses=failures(503))
    config = engine.fd_config.model_config

    # Created once: `created` is the start of the model, not the time of the request.
    cards = {name: ModelCard(id=name, max_model_len=config.max_model_len) for name in config.served_names}

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The served model, once for each of its names."""
        return ModelList(data=list(cards.values()))

    # Ids may contain slashes.
    @router.get("/v1/models/{model_id:path}", responses=failures(404))
    async def model(model_id: str) -> ModelCard:
        """The served model, by id."""
        if model_id not in cards:
            raise NotFoundError(
                f"the model {model_id!r} does not exist; this server has {', '.join(map(repr, cards))}",
                "model",
                "model_not_found",
            )
        return cards[model_id]

    return router


def server_routes(engine: Engine) -> APIRouter:
    """Returns the status routes, which also answer before the model is loaded."""
    router = APIRouter(responses=failures())

    async def ready() -> Response:
        """200 while the worker accepts requests, else 503: before it is ready, while it restarts, during shutdown."""
        engine.require_ready()
        return Response()

    async def live() -> Response:
        """200 while this process answers, regardless of the worker."""
        return Response()

    for path, method, answer in (
        ("/health", "GET", ready),
        ("/health/ready", "GET", ready),
        ("/health/live", "GET", live),
        ("/ping", "GET", ready),
        ("/ping", "POST", ready),
    ):
        unavailable = failures(503) if answer is ready else failures()
        router.add_api_route(
            path,
            answer,
            methods=[method],
            responses=unavailable | {200: {"description": answer.__name__, "content": {}}},
            response_class=Response,
        )

    @router.get("/load")
    async def load() -> ServerLoad:
        """Numbers of running and waiting sequences."""
        now = engine.load
        return ServerLoad(server_load=now.running + now.waiting, running=now.running, waiting=now.waiting)

    @router.get("/version")
    async def version() -> ServerVersion:
        """The version of this package."""
        return ServerVersion(version=__version__)

    return router


def metrics_route(engine: Engine, *, vllm_names: bool = False) -> APIRouter:
    """Returns the route of the Prometheus metrics, with `vllm_names` also under the names that vLLM has for them."""
    registry = engine.metrics.registry
    shown = VLLMNames(registry, engine.fd_config.model_config.served_model_name) if vllm_names else registry
    router = APIRouter(responses=failures())
    text = {200: {"description": "metrics as text", "content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}}

    @router.get("/metrics", responses=text, response_class=Response)  # type: ignore[arg-type]
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(shown), media_type=CONTENT_TYPE_LATEST)

    return router
