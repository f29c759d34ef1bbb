"""POST /v1/abort_requests."""

from __future__ import annotations

from fastapi import APIRouter, Request

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.entrypoints.openai.body.shape import bounded_route
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import (
    RequestRecord,
    RequestsInFlight,
    record_of,
    require_operator,
)
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.abort import (
    AbortedRequest,
    AbortRequestsRequest,
    AbortRequestsResponse,
    AbortResult,
)


def abort_routes(engine: Engine, in_flight: RequestsInFlight) -> APIRouter:
    """Returns the route that aborts running requests."""
    router = APIRouter(responses=failures(400, 403, 404, 413, 503), route_class=bounded_route(engine))

    @router.post("/v1/abort_requests")
    async def abort_requests(body: AbortRequestsRequest, request: Request) -> AbortRequestsResponse:
        """Aborts requests; their clients get the output so far, with the finish reason "abort"; embeddings fail.

        A client's key aborts that client's requests only; `abort_all` is for operators.
        """
        own = record_of(request)
        if body.abort_all:
            require_operator(request, "abort_all")
        wanted = set(body.req_ids or ())
        reachable = (each for each in in_flight.running() if own.operator or each.client == own.client)
        found = [each for each in reachable if body.abort_all or each.names & wanted]
        if not found and not own.operator:
            # The same error for another client's requests and for unknown ids.
            reason = "req_ids: no request of this client runs under these ids"
            raise NotFoundError(reason, "req_ids", "request_not_found")
        known = {name for record in found for name in record.names}
        result = AbortResult(
            aborted=[_abort(record, wanted) for record in found],
            not_found=[each for each in dict.fromkeys(body.req_ids or ()) if each not in known],
        )
        return AbortRequestsResponse(request_id=own.request_id, result=result)

    return router


def _abort(record: RequestRecord, wanted: set[str]) -> AbortedRequest:
    for each in record.work:
        each.abort()
    # The requested name; with `abort_all`, the request's id, which clients know better than the response's.
    name = next((each for each in sorted(filter(None, record.names)) if each in wanted), record.request_id)
    return AbortedRequest(request_id=name, output_token_count=sum(each.num_output_tokens for each in record.work))
