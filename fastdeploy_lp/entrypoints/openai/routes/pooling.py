"""POST /pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt
from fastdeploy_lp.engine.prepare.preparation import token_vectors_bytes
from fastdeploy_lp.entrypoints.io_processing import DATA, NO_PROCESSOR, IOProcessing
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, array, of_numbers
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatMessage
from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingUsage
from fastdeploy_lp.entrypoints.openai.protocol.pooling import (
    IOProcessorResponse,
    PooledInput,
    PoolingBody,
    PoolingResponse,
    new_pooling_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import now, shared_id
from fastdeploy_lp.entrypoints.openai.serving import (
    Caller,
    Serving,
    admitted,
    each_prompt,
    invalid_field,
    num_prompts,
    results_unless_disconnected,
    unless_disconnected,
)
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.plugins.io_processor import NamedIOProcessor
from fastdeploy_lp.request.outputs import PoolingRequestOutput
from fastdeploy_lp.request.pooling_params import PoolingParams


class ServingPooling:
    """Pooled prompts on one engine, with an IO processor if the operator chose one."""

    def __init__(self, engine: Engine, io_processor: NamedIOProcessor | None) -> None:
        self._serving = Serving(engine)
        self._processing = None if io_processor is None else IOProcessing(engine.inputs, io_processor)

    async def start(self, request: PoolingBody, caller: Caller) -> list[Pooling]:
        """Admits every prompt of a request, or none; raises the errors of `ServingChat.start`, and IOProcessorError."""
        self._serving.require_model(request.model)
        try:
            params = request.pooling_params()
        except ValueError as error:
            raise invalid_field(error) from None
        request_id, engine = new_pooling_id(request.request_id), self._serving.engine
        if request.data is not None:
            made = await self._require_processing().requests(request.data, params, request_id)
            requests = [replace(each, client=caller.client, deadline=caller.deadline) for each in made]
        else:
            settled = engine.inputs.settle_pooling(params or PoolingParams())
            prompts = await self._prompts(request, caller)
            requests = [
                EngineRequest(f"{request_id}-{index}", prompt, settled, caller.client, caller.deadline)
                for index, prompt in enumerate(prompts)
            ]
        caller.hold(token_vectors_bytes(requests, int(engine.fd_config.model_config.hf_config["hidden_size"])))
        return await engine.pool(requests)

    def response(self, outputs: Sequence[PoolingRequestOutput], request: PoolingBody) -> PiecedObject:
        """Returns the body of a plain answer, a `PoolingResponse`."""
        in_base64 = request.encoding_format == "base64"
        prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        response = PoolingResponse(
            id=shared_id(outputs[0].request_id),
            model=self._serving.model,
            data=[],
            usage=EmbeddingUsage(prompt_tokens=prompt_tokens, total_tokens=prompt_tokens),
        )
        items = (
            PiecedObject(
                PooledInput(index=index, shape=list(output.outputs.data.shape), data=[]),
                {"data": of_numbers(output.outputs.data, in_base64)},
            )
            for index, output in enumerate(outputs)
        )
        return PiecedObject(response, {"data": array(items)})

    async def processed(self, poolings: Sequence[Pooling]) -> bytes:
        """Returns the body of an IO processor's answer; raises IOProcessorError, and the errors of `Pooling.result`."""
        processing, request_id = self._require_processing(), shared_id(poolings[0].request_id)
        output = await processing.answer([each.result for each in poolings], request_id)
        prompt_tokens = sum(len(each.prompt.token_ids) for each in poolings)
        return await processing.response(output, self._envelope(poolings[0].request_id, "io_processor", prompt_tokens))

    async def _prompts(self, request: PoolingBody, caller: Caller) -> list[Prompt]:
        engine, texts = self._serving.engine, request.input or ""
        inside = self._serving.inside(caller, num_prompts(texts))
        if request.messages is not None:
            return [await inside(partial(self._conversation, request, request.messages))]
        given = await inside(partial(each_prompt, "input", texts))
        engine.require_room(len(given), caller.client)
        options = request.prompt_options
        return await inside(lambda: [engine.inputs.pooling_prompt(prompt, path, options) for path, prompt in given])

    def _conversation(self, request: PoolingBody, messages: Sequence[ChatMessage]) -> Prompt:
        options = ChatOptions(add_generation_prompt=bool(request.add_generation_prompt))
        dumped = [message.model_dump(exclude_none=True) for message in messages]
        return self._serving.engine.inputs.chat_prompt(dumped, options, request.prompt_options, room_for_output=0)

    def _require_processing(self) -> IOProcessing:
        if self._processing is None:
            raise InvalidRequestError(DATA, NO_PROCESSOR)
        return self._processing

    def _envelope(self, request_id: str, kind: str, prompt_tokens: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        model = self._serving.model
        return {"id": shared_id(request_id), "object": kind, "created": now(), "model": model, "usage": usage}


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
