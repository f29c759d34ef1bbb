"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingRequest, EmbeddingResponse
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.serving_embedding import ServingEmbedding


def embedding_routes(engine: EngineClient, route_class: type[APIRoute] = APIRoute) -> APIRouter:
    """Prompts to vectors."""
    failures: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse} for status in (400, 404, 429, 500, 503)
    }
    router = APIRouter(responses=failures, route_class=route_class)
    serving = ServingEmbedding(engine)

    @router.post("/v1/embeddings", response_model=EmbeddingResponse)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Embeddings of one or many inputs."""
        outputs = await results_unless_disconnected(await serving.start(body), request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return Response(serving.response(outputs, body).model_dump_json(), media_type="application/json")

    return router
