"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingRequest, EmbeddingResponse
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.routes.failures import failures
from fastdeploy_lp.entrypoints.openai.serving import FEW_PROMPTS, admitted
from fastdeploy_lp.entrypoints.openai.serving_embedding import ServingEmbedding


def embedding_routes(engine: Engine, route_class: type[APIRoute] = APIRoute) -> APIRouter:
    """Prompts to vectors."""
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, CLIENT_CLOSED_REQUEST, 503), route_class=route_class)
    serving = ServingEmbedding(engine)

    @router.post("/v1/embeddings", response_model=EmbeddingResponse)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Embeddings of one or many inputs."""
        record = record_of(request)
        record.adopt(body.request_id)
        poolings = await admitted(partial(serving.start, body), request, body.timeout)
        record.admitted(shared_id(poolings[0].request_id), poolings)
        outputs = await results_unless_disconnected(poolings, request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

        def content() -> str:
            return serving.response(outputs, body).model_dump_json()

        many = len(outputs) > FEW_PROMPTS
        return Response(await asyncio.to_thread(content) if many else content(), media_type="application/json")

    return router
