"""POST /v1/embeddings: one or many inputs, each to one vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.input_processor import EngineRequest
from fastdeploy_lp.engine.pooling import Pooling
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, array
from fastdeploy_lp.entrypoints.openai.number_pieces import of_numbers
from fastdeploy_lp.entrypoints.openai.protocol.embedding import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    new_embedding_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, each_prompt, invalid_field, num_prompts
from fastdeploy_lp.outputs import PoolingRequestOutput


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
        settled = engine.inputs.settle_pooling(params)
        inside = self._serving.inside(caller, num_prompts(request.input))
        given = await inside(partial(each_prompt, "input", request.input))
        engine.require_room(len(given), caller.client)
        prompts = await inside(lambda: [engine.inputs.pooling_prompt(prompt, path) for path, prompt in given])
        request_id = new_embedding_id(request.request_id)
        return await engine.pool(
            [
                EngineRequest(f"{request_id}-{index}", prompt, settled, caller.client, caller.deadline)
                for index, prompt in enumerate(prompts)
            ]
        )

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
