"""POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.engine.prepare.preparation import Run
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, array, of_numbers
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.embedding import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    new_embedding_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.serving import (
    Caller,
    Serving,
    admitted,
    each_prompt,
    invalid_field,
    num_prompts,
    results_unless_disconnected,
)
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.request.outputs import PoolingRequestOutput
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.prompt_options import PromptOptions


async def pooled(
    engine: Engine,
    given: Sequence[tuple[str, str | list[int]]],
    params: PoolingParams,
    options: PromptOptions,
    request_id: str,
    caller: Caller,
    inside: Run,
) -> list[Pooling]:
    """Admits every prompt, each given with its path in the body, or none; `inside` runs the work on their texts.

    Raises InvalidRequestError naming the path, QueueFullError and the errors of `Engine.pool`.
    """
    settled = engine.inputs.settle_pooling(params)
    engine.require_room(len(given), caller.client)
    prompts = await inside(lambda: [engine.inputs.pooling_prompt(prompt, path, options) for path, prompt in given])
    return await engine.pool(
        [
            EngineRequest(f"{request_id}-{index}", prompt, settled, caller.client, caller.deadline)
            for index, prompt in enumerate(prompts)
        ]
    )


class ServingEmbedding:
    """Embeddings on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)

    async def start(self, request: EmbeddingRequest, caller: Caller) -> list[Pooling]:
        """Admits every input of a request, or none; raises the errors of `ServingChat.start`."""
        self._serving.require_model(request.model)
        engine = self._serving.engine
        try:
            params = request.pooling_params()
        except ValueError as error:
            raise invalid_field(error) from None
        inside = self._serving.inside(caller, num_prompts(request.input))
        given = await inside(partial(each_prompt, "input", request.input))
        request_id = new_embedding_id(request.request_id)
        return await pooled(engine, given, params, request.prompt_options, request_id, caller, inside)

    def response(self, outputs: Sequence[PoolingRequestOutput], request: EmbeddingRequest) -> PiecedObject:
        """Returns the body of the answer, an `EmbeddingResponse`."""
        in_base64 = request.encoding_format == "base64"
        prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        response = EmbeddingResponse(
            id=shared_id(outputs[0].request_id),
            model=self._serving.model,
            data=[],
            usage=EmbeddingUsage(prompt_tokens=prompt_tokens, total_tokens=prompt_tokens),
        )
        items = (
            PiecedObject(
                Embedding(index=index, embedding=[]), {"embedding": of_numbers(output.outputs.data, in_base64)}
            )
            for index, output in enumerate(outputs)
        )
        return PiecedObject(response, {"data": array(items)})


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
