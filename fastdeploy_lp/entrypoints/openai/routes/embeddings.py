"""POST /v1/embeddings."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, results_unless_disconnected
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingRequest, EmbeddingResponse
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.routes.failures import failures
from fastdeploy_lp.entrypoints.openai.serving import admitted
from fastdeploy_lp.entrypoints.openai.serving_embedding import ServingEmbedding
from fastdeploy_lp.entrypoints.openai.stream_watch import StreamWatch


def embedding_routes(
    engine: Engine, turns: EncodingTurns, watch: StreamWatch, route_class: type[APIRoute] = APIRoute
) -> APIRouter:
    """Returns the route of embeddings."""
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
        return PiecedAnswer(serving.response(outputs, body), record.request_id, turns, watch)

    return router
