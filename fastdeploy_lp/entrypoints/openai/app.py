"""The HTTP routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import make_asgi_app

from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ErrorInfo,
    ErrorResponse,
    ModelCard,
    ModelList,
)
from fastdeploy_lp.entrypoints.openai.serving_chat import ServingChat
from fastdeploy_lp.outputs import RequestOutput
from fastdeploy_lp.version import __version__

CLIENT_CLOSED_REQUEST = 499


def build_app(engine: EngineClient, *, with_metrics: bool) -> FastAPI:
    """The application on a started engine, which it shuts down when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.shutdown()

    app = FastAPI(title="fastdeploy_lp", version=__version__, lifespan=lifespan)
    errors.install(app)
    chat = ServingChat(engine)

    @app.post("/v1/chat/completions", response_model=ChatCompletionResponse, responses={400: {"model": ErrorResponse}})
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Chat completion, plain or streamed."""
        generation = await chat.start(body)
        if body.stream:
            include_usage = body.stream_options is not None and body.stream_options.include_usage
            events = chat.stream(generation, include_usage=include_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        output = await _result_unless_disconnected(generation, request)
        if output is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return Response(chat.response(output).model_dump_json(), media_type="application/json")

    @app.get("/v1/models")
    async def models() -> ModelList:
        """The served model."""
        config = engine.fd_config.model_config
        return ModelList(data=[ModelCard(id=config.served_model_name, max_model_len=config.max_model_len)])

    @app.get("/health", responses={503: {"model": ErrorResponse}})
    async def health() -> Response:
        """200 while the worker is up, else 503."""
        if engine.healthy:
            return Response(status_code=HTTPStatus.OK)
        info = ErrorInfo(message="the worker process is not running", type="server_error", code="engine_down")
        return JSONResponse(ErrorResponse(error=info).model_dump(), HTTPStatus.SERVICE_UNAVAILABLE)

    if with_metrics:
        app.mount("/metrics", make_asgi_app(engine.metrics.registry))
    return app


async def _result_unless_disconnected(generation: Generation, request: Request) -> RequestOutput | None:
    """The answer; None, and the request aborted, when the client goes first."""
    result = asyncio.ensure_future(generation.result())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await result if result.done() else None
    finally:
        for task in (result, gone):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
