"""POST /pooling."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.entrypoints.openai.disconnect import (
    CLIENT_CLOSED_REQUEST,
    results_unless_disconnected,
    unless_disconnected,
)
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.entrypoints.openai.protocol.pooling import IOProcessorResponse, PoolingBody, PoolingResponse
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.routes.failures import failures
from fastdeploy_lp.entrypoints.openai.serving import admitted
from fastdeploy_lp.entrypoints.openai.serving_pooling import ServingPooling
from fastdeploy_lp.entrypoints.openai.stream_watch import StreamWatch
from fastdeploy_lp.plugins.io_processor_source import NamedIOProcessor


def pooling_routes(
    engine: Engine,
    io_processor: NamedIOProcessor | None,
    in_flight: RequestsInFlight,
    turns: EncodingTurns,
    watch: StreamWatch,
    route_class: type[APIRoute] = APIRoute,
) -> APIRouter:
    """Returns the route of pooling, for prompts and for an IO processor's data."""
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, CLIENT_CLOSED_REQUEST, 503), route_class=route_class)
    serving = ServingPooling(engine, io_processor)

    @router.post("/pooling", response_model=PoolingResponse | IOProcessorResponse)
    async def pooling(body: PoolingBody, request: Request) -> Response:
        """Vectors of inputs, of a conversation, or of each of their tokens; or the IO processor's answer."""
        record = record_of(request)
        record.adopt(body.request_id)
        hold = partial(in_flight.hold_answer, record)
        poolings = await admitted(partial(serving.start, body), request, body.timeout, hold)
        record.admitted(shared_id(poolings[0].request_id), poolings)
        if body.data is None:
            outputs = await results_unless_disconnected(poolings, request)
            if outputs:
                return PiecedAnswer(serving.response(outputs, body), record.request_id, turns, watch)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        try:
            content = await unless_disconnected(serving.processed(poolings), request.receive)
        finally:
            for each in poolings:
                each.close()
        if content is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return Response(content, media_type="application/json")

    return router
