"""POST /v1/rerank and POST /v1/score: texts compared by the cosine of their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, array
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingUsage
from fastdeploy_lp.entrypoints.openai.protocol.ranking import (
    ComparisonRequest,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankText,
    Score,
    ScoreRequest,
    ScoreResponse,
    new_ranking_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.routes.embeddings import pooled
from fastdeploy_lp.entrypoints.openai.serving import (
    Caller,
    Serving,
    admitted,
    each_prompt,
    invalid_field,
    results_unless_disconnected,
)
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.request.outputs import PoolingRequestOutput

Body = TypeVar("Body", bound=ComparisonRequest)
Given = list[tuple[str, str | list[int]]]


class ServingRanking:
    """Comparisons of texts on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)

    async def start(
        self, texts: Callable[[], Given], count: int, kind: str, request: ComparisonRequest, caller: Caller
    ) -> list[Pooling]:
        """Admits all `count` texts of a request, or none; raises the errors of `ServingEmbedding.start`."""
        self._serving.require_model(request.model)
        try:
            params = request.pooling_params()
        except ValueError as error:
            raise invalid_field(error) from None
        inside = self._serving.inside(caller, count)
        given = await inside(texts)
        request_id = new_ranking_id(kind, request.request_id)
        return await pooled(self._serving.engine, given, params, request.prompt_options, request_id, caller, inside)

    def ranking(self, outputs: Sequence[PoolingRequestOutput], request: RerankRequest) -> PiecedObject:
        """Returns the body of an answer, a `RerankResponse`; documents of the same relevance keep their order."""
        scores = _cosines(outputs[:1], outputs[1:])
        order = np.argsort(-scores, kind="stable")[: request.top_n]
        response = RerankResponse(
            id=shared_id(outputs[0].request_id), model=self._serving.model, usage=_usage(outputs), results=[]
        )
        texts = request.texts
        results = (
            PiecedObject(
                RerankResult(
                    index=index,
                    document=RerankText(text=texts[index]) if request.return_documents else None,
                    relevance_score=float(scores[index]),
                )
            )
            for index in map(int, order)
        )
        return PiecedObject(response, {"results": array(results)})

    def scores(self, outputs: Sequence[PoolingRequestOutput], request: ScoreRequest) -> PiecedObject:
        """Returns the body of an answer, a `ScoreResponse`."""
        count = len(request.first)
        cosines = _cosines(outputs[:count], outputs[count:])
        response = ScoreResponse(
            id=shared_id(outputs[0].request_id), model=self._serving.model, data=[], usage=_usage(outputs)
        )
        items = (PiecedObject(Score(index=index, score=float(score))) for index, score in enumerate(cosines))
        return PiecedObject(response, {"data": array(items)})


def _cosines(first: Sequence[PoolingRequestOutput], second: Sequence[PoolingRequestOutput]) -> np.ndarray:
    """Returns the cosine of each pair [len(second)], float32; one first vector is compared with all second ones."""
    # Vectors have length 1; rounding may leave a cosine just above it.
    left, right = (np.stack([output.outputs.data for output in each]) for each in (first, second))
    cosines: np.ndarray = (left * right).sum(axis=1)
    return cosines.clip(-1.0, 1.0)


def _usage(outputs: Sequence[PoolingRequestOutput]) -> EmbeddingUsage:
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return EmbeddingUsage(prompt_tokens=prompt_tokens, total_tokens=prompt_tokens)


def ranking_routes(
    engine: Engine, turns: EncodingTurns, watch: StreamWatch, route_class: type[APIRoute] = APIRoute
) -> APIRouter:
    """Returns the routes of reranking and scoring."""
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, CLIENT_CLOSED_REQUEST, 503), route_class=route_class)
    serving = ServingRanking(engine)

    async def answer(
        kind: str,
        body: Body,
        count: int,
        texts: Callable[[], Given],
        answer_of: Callable[[Sequence[PoolingRequestOutput], Body], PiecedObject],
        request: Request,
    ) -> Response:
        record = record_of(request)
        record.adopt(body.request_id)
        poolings = await admitted(partial(serving.start, texts, count, kind, body), request, body.timeout)
        record.admitted(shared_id(poolings[0].request_id), poolings)
        outputs = await results_unless_disconnected(poolings, request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return PiecedAnswer(answer_of(outputs, body), record.request_id, turns, watch)

    @router.post("/v1/rerank", response_model=RerankResponse)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Documents by how near their embeddings are to the query's."""

        def texts() -> Given:
            return [("query", body.query), *each_prompt("documents", body.texts)]

        return await answer("rerank", body, len(body.documents) + 1, texts, serving.ranking, request)

    @router.post("/v1/score", response_model=ScoreResponse)
    async def score(body: ScoreRequest, request: Request) -> Response:
        """The nearness of pairs of texts, by their embeddings."""

        def texts() -> Given:
            return [*each_prompt("text_1", body.text_1), *each_prompt("text_2", body.text_2)]

        return await answer("score", body, len(body.first) + len(body.second), texts, serving.scores, request)

    return router
