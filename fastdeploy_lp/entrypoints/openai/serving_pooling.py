"""POST /pooling: inputs, conversations, or data of an IO processor's own, to vectors or what that makes of them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.pooling import Pooling, PoolingRequest
from fastdeploy_lp.entrypoints.io_processing import DATA, NO_PROCESSOR, IOProcessing
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.message import ChatMessage
from fastdeploy_lp.entrypoints.openai.protocol.pooling import PoolingBody, new_pooling_id
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, each_prompt, invalid_field, num_prompts
from fastdeploy_lp.outputs import PoolingRequestOutput
from fastdeploy_lp.plugins.io_processor_source import NamedIOProcessor
from fastdeploy_lp.pooling_params import PoolingParams


class ServingPooling:
    """Pooled prompts on one engine, with an IO processor if the operator chose one."""

    def __init__(self, engine: Engine, io_processor: NamedIOProcessor | None) -> None:
        self._serving = Serving(engine)
        self._processing = None if io_processor is None else IOProcessing(engine.inputs, io_processor)

    async def start(self, request: PoolingBody, caller: Caller) -> list[Pooling]:
        """Admit every prompt of a request, or none; raises as `ServingChat.start` does, and IOProcessorError."""
        self._serving.require_model(request.model)
        try:
            params = request.pooling_params()
        except ValueError as error:
            raise invalid_field(error) from None
        request_id, engine = new_pooling_id(request.request_id), self._serving.engine
        if request.data is not None:
            made = await self._require_processing().requests(request.data, params, request_id)
            return await engine.pool([replace(each, client=caller.client, deadline=caller.deadline) for each in made])
        settled = engine.inputs.settle_pooling(params or PoolingParams())
        prompts = await self._prompts(request, caller)
        return await engine.pool(
            [
                PoolingRequest(f"{request_id}-{index}", prompt, settled, caller.client, caller.deadline)
                for index, prompt in enumerate(prompts)
            ]
        )

    async def response(self, outputs: Sequence[PoolingRequestOutput], request: PoolingBody) -> bytes:
        """The body of a plain answer, made in a thread: there may be a vector a token."""
        vectors = [output.outputs.data for output in outputs]
        prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        envelope = self._envelope(outputs[0].request_id, "list", prompt_tokens)
        return await asyncio.to_thread(_encoded, envelope, vectors, in_base64=request.encoding_format == "base64")

    async def processed(self, poolings: Sequence[Pooling]) -> bytes:
        """The body of an IO processor's answer; raises IOProcessorError, and what `Pooling.result` raises."""
        processing, request_id = self._require_processing(), shared_id(poolings[0].request_id)
        output = await processing.answer([each.result for each in poolings], request_id)
        prompt_tokens = sum(len(each.prompt.token_ids) for each in poolings)
        return await processing.response(output, self._envelope(poolings[0].request_id, "io_processor", prompt_tokens))

    async def _prompts(self, request: PoolingBody, caller: Caller) -> list[Prompt]:
        engine, texts = self._serving.engine, request.input or ""
        inside = self._serving.inside(caller, num_prompts(texts))
        if request.messages is not None:
            return [await inside(partial(self._conversation, request.messages, request.add_generation_prompt))]
        given = await inside(partial(each_prompt, "input", texts))
        engine.require_room(len(given), caller.client)
        return await inside(lambda: [engine.inputs.pooling_prompt(prompt, path) for path, prompt in given])

    def _conversation(self, messages: Sequence[ChatMessage], add_generation_prompt: bool | None) -> Prompt:
        options = ChatOptions(add_generation_prompt=bool(add_generation_prompt))
        dumped = [message.model_dump(exclude_none=True) for message in messages]
        return self._serving.engine.inputs.chat_prompt(dumped, options, room_for_output=0)

    def _require_processing(self) -> IOProcessing:
        if self._processing is None:
            raise InvalidRequestError(DATA, NO_PROCESSOR)
        return self._processing

    def _envelope(self, request_id: str, kind: str, prompt_tokens: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        model = self._serving.model
        return {"id": shared_id(request_id), "object": kind, "created": now(), "model": model, "usage": usage}


def _encoded(envelope: dict[str, Any], vectors: Sequence[NDArray[np.float32]], *, in_base64: bool) -> bytes:
    """`PoolingResponse` as JSON, written row by row: one long call would keep all other threads waiting."""
    items = []
    for index, vector in enumerate(vectors):
        head = {"object": "pooling", "index": index, "shape": list(vector.shape)}
        if in_base64:
            numbers = json.dumps(base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii"))
        elif vector.ndim == 1:
            numbers = json.dumps(vector.tolist())
        else:
            numbers = f"[{','.join(json.dumps(row.tolist()) for row in vector)}]"
        items.append(f'{json.dumps(head)[:-1]},"data":{numbers}}}')
    return f'{json.dumps(envelope)[:-1]},"data":[{",".join(items)}]}}'.encode()
