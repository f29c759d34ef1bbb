"""`LLM.embed` and `AsyncLLM.embed` on a tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from support.chat import REQUEST_SECONDS
from support.pooling import POOLED_CONTEXT, WAITING, WHOLE_CONTEXT, PoolingEngine
from support.server import ServerProcess

from fastdeploy_lp import LLM, PoolingParams, SamplingParams
from fastdeploy_lp.engine.errors import InvalidRequestError, QueueFullError, RequestFailedError
from fastdeploy_lp.request.outputs import EmbeddingRequestOutput

TEXTS = ["A cat sits on the mat.", "The kitten lies on the rug.", "Stock prices fell sharply today."]
HIDDEN_SIZE = 64
ROOM = 1 + WAITING
LONG = [7] * POOLED_CONTEXT
BUSY = [7] * WHOLE_CONTEXT


@pytest.fixture(scope="module")
def tiny_server(pooling_model: str) -> Iterator[ServerProcess]:
    with ServerProcess("--max-model-len", str(POOLED_CONTEXT), model=pooling_model) as running:
        yield running


def vectors(outputs: list[EmbeddingRequestOutput]) -> np.ndarray:
    return np.array([output.outputs.embedding for output in outputs], np.float32)


def test_embeddings_come_in_order_however_the_prompts_are_given(
    pooling_llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = pooling_llm.embed(TEXTS, use_tqdm=False)
    assert capsys.readouterr().err == ""
    assert len({output.request_id for output in outputs}) == len(TEXTS)
    found = vectors(outputs)
    assert found.shape == (len(TEXTS), HIDDEN_SIZE)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    # What a real model makes of them is seen over HTTP, which gives the same bits.
    assert len({tuple(vector) for vector in found.tolist()}) == len(TEXTS)
    ids = [output.prompt_token_ids for output in outputs]
    np.testing.assert_array_equal(vectors(pooling_llm.embed(ids)), found)
    assert "3/3" in capsys.readouterr().err
    for text, tokens, vector in zip(TEXTS, ids, found, strict=True):
        (from_text,), (from_tokens,) = (
            pooling_llm.embed(text, use_tqdm=False),
            pooling_llm.embed(tokens, use_tqdm=False),
        )
        assert from_text.outputs.embedding == from_tokens.outputs.embedding == vector.tolist()
        assert (from_text.outputs.hidden_size, from_text.finished) == (HIDDEN_SIZE, True)
    assert pooling_llm.embed([], use_tqdm=False) == []


def test_each_prompt_may_have_parameters_of_its_own(pooling_llm: LLM) -> None:
    asked = [
        PoolingParams(normalize=False),
        PoolingParams(pooling="mean", dimensions=3, normalize=False),
        PoolingParams(pooling="last", normalize=False),
    ]
    mean, short, last = pooling_llm.embed([TEXTS[0]] * 3, asked, use_tqdm=False)
    assert short.outputs.embedding == mean.outputs.embedding[:3]
    assert last.outputs.embedding != mean.outputs.embedding
    (one_token,) = pooling_llm.embed([[5]], asked[0], use_tqdm=False)
    (same,) = pooling_llm.embed([[5]], asked[2], use_tqdm=False)
    assert one_token.outputs.embedding == same.outputs.embedding


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", None, "prompts: the prompt is empty"),
        (["a", ""], None, r"prompts\.1: the prompt is empty"),
        ([[1], [2, 10**6]], None, r"prompts\.1\.1: 1000000 is no token id"),
        ([[1], [*LONG, 7]], None, rf"prompts\.1: the prompt has {POOLED_CONTEXT + 1} tokens"),
        (["a"], PoolingParams(dimensions=HIDDEN_SIZE + 1), f"dimensions: .* 1 to {HIDDEN_SIZE}"),
        (["a", "b"], [PoolingParams()], "pooling_params: 1 given for 2 prompts"),
    ],
)
def test_what_can_not_be_served_is_told_before_anything_is_computed(
    pooling_llm: LLM, prompts: Any, params: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pooling_llm.embed(prompts, params, use_tqdm=False)


def test_a_prompt_that_fills_the_context_leaves_no_room_to_generate_and_is_pooled(pooling_llm: LLM) -> None:
    (output,) = pooling_llm.embed([LONG], use_tqdm=False)
    assert output.prompt_token_ids == LONG
    with pytest.raises(ValueError, match="at least one of them for output"):
        pooling_llm.generate([LONG], use_tqdm=False)


def test_the_last_token_uses_what_is_known_of_a_prompt(pooling_llm: LLM) -> None:
    params = PoolingParams(pooling="last")
    cold, warm = (pooling_llm.embed([[9] * 40], params, use_tqdm=False)[0] for _ in "12")
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32)
    assert cold.outputs.embedding == warm.outputs.embedding


def test_offline_asynchronous_and_over_http_are_the_same_bits(
    pooling_llm: LLM, pooling_engine: PoolingEngine, tiny_server: ServerProcess
) -> None:
    offline = [output.outputs.embedding for output in pooling_llm.embed(TEXTS, use_tqdm=False)]

    async def all_at_once() -> list[EmbeddingRequestOutput]:
        return list(await asyncio.gather(*(pooling_engine.llm.embed(text) for text in TEXTS)))

    assert [output.outputs.embedding for output in pooling_engine.run(all_at_once())] == offline
    body = {"input": TEXTS, "pooling": "mean", "encoding_format": "float"}
    answer = httpx.post(f"{tiny_server.url}/v1/embeddings", json=body, timeout=REQUEST_SECONDS).json()
    assert [each["embedding"] for each in answer["data"]] == offline


def test_async_embeddings_and_texts_share_an_engine(pooling_engine: PoolingEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=5)

    async def text() -> list[int]:
        last: list[int] = []
        async for output in pooling_engine.llm.generate(TEXTS[0], params):
            last = output.outputs.token_ids
        return last

    async def both() -> tuple[list[int], EmbeddingRequestOutput]:
        return await asyncio.gather(text(), pooling_engine.llm.embed(TEXTS[1], request_id="mine"))

    tokens, output = pooling_engine.run(both())
    assert output.request_id == "mine"
    assert tokens == pooling_engine.run(text())
    assert output.outputs == pooling_engine.run(pooling_engine.llm.embed(TEXTS[1])).outputs


def test_async_abort_and_a_full_queue(pooling_engine: PoolingEngine) -> None:
    async def run() -> None:
        many = [asyncio.ensure_future(pooling_engine.llm.embed(BUSY, request_id=f"r{index}")) for index in range(ROOM)]
        while len(pooling_engine.llm._running) < ROOM:
            await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="max_waiting_requests"):
            await pooling_engine.llm.embed([1])
        with pytest.raises(InvalidRequestError, match="request_id: 'r1' is running already"):
            await pooling_engine.llm.embed([1], request_id="r1")
        pooling_engine.llm.abort("r2")
        for each in many[3:]:
            each.cancel()
        first, second, third, *others = await asyncio.gather(*many, return_exceptions=True)
        assert isinstance(first, EmbeddingRequestOutput)
        assert isinstance(second, EmbeddingRequestOutput)
        assert isinstance(third, RequestFailedError)
        assert [type(each) for each in others] == [asyncio.CancelledError] * (ROOM - 3)
        assert pooling_engine.llm._running == {}
        assert first.outputs == second.outputs
        assert (await pooling_engine.llm.embed(BUSY)).outputs == first.outputs

    pooling_engine.run(run())
