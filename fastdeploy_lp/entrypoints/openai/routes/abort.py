"""POST /v1/abort_requests."""

from __future__ import annotations

from fastapi import APIRouter, Request

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.entrypoints.openai.body_shape import bounded_route
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestRecord, RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.protocol.abort import (
    AbortedRequest,
    AbortRequestsRequest,
    AbortRequestsResponse,
    AbortResult,
)
from fastdeploy_lp.entrypoints.openai.routes.failures import failures


def abort_routes(engine: Engine, in_flight: RequestsInFlight) -> APIRouter:
    """Requests ended by somebody else than their clients."""
    router = APIRouter(responses=failures(400, 413, 503), route_class=bounded_route(engine))

    @router.post("/v1/abort_requests")
    async def abort_requests(body: AbortRequestsRequest, request: Request) -> AbortRequestsResponse:
        """End requests; their clients get what there is so far, with the finish reason "abort"; embeddings fail."""
        wanted = set(body.req_ids or ())
        found = [each for each in in_flight.running() if body.abort_all or each.names & wanted]
        known = {name for record in found for name in record.names}
        result = AbortResult(
            aborted=[_abort(record, wanted) for record in found],
            not_found=[each for each in dict.fromkeys(body.req_ids or ()) if each not in known],
        )
        return AbortRequestsResponse(request_id=record_of(request).request_id, result=result)

    return router


def _abort(record: RequestRecord, wanted: set[str]) -> AbortedRequest:
    for each in record.work:
        each.abort()
    # By the name that was asked for; of those that nobody named, the client's own is better known than the response's.
    name = next((each for each in sorted(filter(None, record.names)) if each in wanted), record.request_id)
    return AbortedRequest(request_id=name, output_token_count=sum(each.num_output_tokens for each in record.work))
