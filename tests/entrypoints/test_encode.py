"""`LLM.encode` and `AsyncLLM.encode`: a vector, one a token, and an IO processor's answers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.distributions import import_folder
from support.pooling import IO_PROCESSORS, POOLED_CONTEXT, PoolingEngine

from fastdeploy_lp import LLM, AsyncLLM, PoolingParams
from fastdeploy_lp.engine.errors import EngineDeadError, IOProcessorError, RequestAbortedError
from fastdeploy_lp.request.outputs import PoolingOutput

PROMPTS = ["the dog", "the quick brown fox", "over"]
RAW = PoolingParams(normalize=False)
TOKENS = PoolingParams(task="token_embed", normalize=False)
HIDDEN_SIZE = 64


def encode(llm: LLM, prompts: Any, params: Any = None) -> list[Any]:
    return llm.encode(prompts, params, use_tqdm=False)


def process(llm: LLM, **data: Any) -> Any:
    (output,) = encode(llm, {"data": data})
    assert (output.prompt_token_ids, output.finished) == ([], True)
    return output.outputs


def test_one_vector_is_what_embed_gives(pooling_llm: LLM) -> None:
    encoded = encode(pooling_llm, PROMPTS)
    embedded = pooling_llm.embed(PROMPTS, use_tqdm=False)
    assert all(isinstance(each.outputs, PoolingOutput) for each in encoded)
    assert [each.outputs.data.tolist() for each in encoded] == [each.outputs.embedding for each in embedded]
    ids = [each.prompt_token_ids for each in encoded]
    for form in (ids, [{"prompt": each} for each in PROMPTS], [{"prompt_token_ids": each} for each in ids]):
        for output, expected in zip(encode(pooling_llm, form), encoded, strict=True):
            np.testing.assert_array_equal(output.outputs.data, expected.outputs.data)


def test_a_cut_prompt_is_pooled_as_its_first_tokens(pooling_llm: LLM) -> None:
    ids, cut = encode(pooling_llm, PROMPTS[1])[0].prompt_token_ids, {"truncate_prompt_tokens": 2}
    (expected,) = encode(pooling_llm, ids[:2])
    (encoded,) = pooling_llm.encode(PROMPTS[1], use_tqdm=False, tokenization_kwargs=cut)
    (embedded,) = pooling_llm.embed(PROMPTS[1], use_tqdm=False, tokenization_kwargs=cut)
    assert encoded.prompt_token_ids == ids[:2]
    assert encoded.outputs.data.tolist() == expected.outputs.data.tolist() == embedded.outputs.embedding
    with pytest.raises(ValueError, match="tokenization_kwargs: is not allowed together with data"):
        pooling_llm.encode({"data": {}}, tokenization_kwargs=cut)


def test_the_vectors_of_tokens_come_to_the_vector_of_the_prompt(pooling_llm: LLM) -> None:
    last = PoolingParams(pooling="last", normalize=False)
    for each, tokens in zip(PROMPTS, encode(pooling_llm, PROMPTS, TOKENS), strict=True):
        rows = tokens.outputs.data
        assert (rows.dtype, rows.shape) == (np.float32, (len(tokens.prompt_token_ids), HIDDEN_SIZE))
        (mean,), (end,) = encode(pooling_llm, each, RAW), encode(pooling_llm, each, last)
        np.testing.assert_allclose(rows.mean(axis=0), mean.outputs.data, atol=1e-5)
        np.testing.assert_array_equal(rows[-1], end.outputs.data)


def test_each_tokens_vector_is_cut_and_then_has_length_one(pooling_llm: LLM) -> None:
    (raw,) = encode(pooling_llm, PROMPTS[1], TOKENS)
    (cut,) = encode(pooling_llm, PROMPTS[1], PoolingParams(task="token_embed", dimensions=5))
    expected = raw.outputs.data[:, :5].astype(np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(cut.outputs.data, expected, atol=1e-6)
    assert cut.outputs.data.dtype == np.float32


def test_a_prompt_may_fill_the_context(pooling_llm: LLM) -> None:
    (output,) = encode(pooling_llm, [[5] * POOLED_CONTEXT], TOKENS)
    assert output.outputs.data.shape == (POOLED_CONTEXT, HIDDEN_SIZE)


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", None, "prompt: the prompt is empty"),
        (["a", 5], None, r"prompt\.1: must be a text"),
        ({"prompt": "a", "task": "embed"}, None, r"prompt\.task: is no part of a prompt"),
        ([[5] * (POOLED_CONTEXT + 1)], None, rf"prompt\.0: the prompt has {POOLED_CONTEXT + 1} tokens"),
        ("a", PoolingParams(task="token_embed", dimensions=HIDDEN_SIZE + 1), "dimensions: .* 1 to 64"),
        (["a", "b"], [RAW], "pooling_params: 1 given for 2 prompts"),
        ({"data": {"texts": ["a"]}}, [RAW], "pooling_params: give one for data, not a list"),
        ({"data": {"texts": ["a"]}, "prompt": "b"}, None, "prompt: is not allowed together with data"),
        ({"data": "unreadable"}, None, "data: this cannot be read"),
        ({"data": {"texts": []}}, None, r"data\.texts: List should have at least 1 item"),
        ({"data": {"texts": ["a"], "fail": 5}}, None, r"data\.fail: Input should be a valid string"),
        ({"data": {"texts": ["a"]}}, PoolingParams(dimensions=5), "dimensions: 5 is not liked"),
        ({"data": {"texts": ["a"]}}, PoolingParams(dimensions=999), "dimensions: 999 is too many"),
        ({"data": {"texts": ["a", ""]}}, None, r"data: made into prompt\.1: the prompt is empty"),
        ({"data": {"texts": [[5] * 300]}}, None, r"data: made into prompt\.0: the prompt has 300 tokens"),
        ({"data": {"texts": ["a"], "fail": "parse_request", "error": "ValueError"}}, None, "data: of the data"),
    ],
)
def test_what_can_not_be_served_is_told_before_anything_is_computed(
    pooling_llm: LLM, prompts: Any, params: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode(pooling_llm, prompts, params)


def test_an_embedding_is_one_vector(pooling_llm: LLM) -> None:
    with pytest.raises(ValueError, match="task: an embedding is one vector, token_embed gives many; use encode"):
        pooling_llm.embed("a", TOKENS, use_tqdm=False)


def test_an_io_processor_makes_prompts_of_data_and_an_answer_of_vectors(pooling_llm: LLM) -> None:
    one = encode(pooling_llm, "the dog", RAW)[0].outputs.data
    answer = encode(pooling_llm, {"data": {"texts": ["the dog", "over", [5, 6]]}}, RAW)[0].outputs
    assert [entry[0] for entry in answer] == [HIDDEN_SIZE] * 3
    assert answer[0][1] == float(np.sum(one))
    (single,) = process(pooling_llm, texts=[[5, 6, 7]], fail="single")
    assert single[0] == HIDDEN_SIZE
    rows = encode(pooling_llm, {"data": {"texts": [[5, 6, 7]]}}, TOKENS)[0].outputs
    assert rows[0][:2] == [3, HIDDEN_SIZE]


@pytest.mark.parametrize(
    ("data", "method", "kind"),
    [
        ({"texts": ["a"], "fail": "parse_request"}, "parse_request", "RuntimeError"),
        ({"texts": ["a"], "fail": "parse_request", "error": "SystemExit"}, "parse_request", "SystemExit"),
        ({"texts": ["a"], "fail": "parse_request", "error": "StopIteration"}, "parse_request", "RuntimeError"),
        ({"texts": ["a"], "fail": "pre_process"}, "pre_process", "RuntimeError"),
        ({"texts": ["a"], "fail": "pre_process", "error": "ValueError"}, "pre_process", "ValueError"),
        ({"texts": ["a"], "fail": "no prompt"}, "pre_process", "ValueError"),
        ({"texts": ["a", 5]}, "pre_process", "InvalidRequestError"),
        ({"texts": ["a", [10**9]]}, "pre_process", "InvalidRequestError"),
        ({"texts": ["a", "b"]}, "post_process", "RuntimeError"),
    ],
)
def test_what_an_io_processor_raises_is_told_by_its_name_and_ends_its_request_alone(
    pooling_llm: LLM, caplog: pytest.LogCaptureFixture, data: Any, method: str, kind: str
) -> None:
    with caplog.at_level(logging.ERROR, "fastdeploy_lp"), pytest.raises(IOProcessorError) as error:
        process(pooling_llm, **data)
    assert str(error.value) == f"IO processor lengths failed in {method} ({kind})"
    assert error.value.__cause__ is not None
    assert "Traceback" in caplog.text
    assert str(error.value) in caplog.text
    assert len(process(pooling_llm, texts=["still", "there", "?"])) == 3


def test_parameters_that_are_none_are_the_processors_fault(pooling_llm: LLM) -> None:
    with pytest.raises(IOProcessorError, match=r"failed in validate_or_generate_params \(TypeError\)"):
        encode(pooling_llm, {"data": {"texts": ["a"]}}, PoolingParams(dimensions=6))


def test_data_needs_an_io_processor(pooling_model: str, io_processors: Path) -> None:
    with (
        import_folder(io_processors, only=",".join(IO_PROCESSORS)),
        pytest.raises(ValueError, match=r"'lenghts' is no IO-processor plugin .*; there are: hasty, lengths"),
    ):
        LLM(pooling_model, io_processor_plugin="lenghts")


def test_async_encode_gives_the_same(pooling_engine: PoolingEngine, pooling_llm: LLM) -> None:
    last = PoolingParams(pooling="last", normalize=False)
    for prompt, params in (("the dog", last), ([5, 6, 7], TOKENS), ({"prompt": "over"}, PoolingParams(pooling="mean"))):
        output = pooling_engine.run(pooling_engine.llm.encode(prompt, params, request_id="mine"))
        assert output.request_id == "mine"
        (expected,) = encode(pooling_llm, prompt, params)
        np.testing.assert_array_equal(output.outputs.data, expected.outputs.data)


def test_prompts_that_a_processor_does_not_wait_for_are_aborted(pooling_engine: PoolingEngine) -> None:
    output = pooling_engine.run(pooling_engine.llm.encode({"data": {"texts": ["the dog"] * 8}}, request_id="mine"))
    assert (output.request_id, len(output.outputs)) == ("mine", 1)
    inner = pooling_engine.llm._engine
    assert inner is not None
    assert inner.num_in_flight == 0
    assert pooling_engine.llm._running == {}


def test_an_abort_and_the_engines_end_are_not_the_processors_failure(pooling_model: str, io_processors: Path) -> None:
    async def begun(llm: AsyncLLM) -> asyncio.Future[Any]:
        # One slot: those behind the first wait.
        work = asyncio.ensure_future(llm.encode({"data": {"texts": [[7] * 100] * 8}}, request_id="mine"))
        while not work.done() and not llm._running.get("mine"):
            await asyncio.sleep(0.001)
        return work

    async def run() -> None:
        options: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": POOLED_CONTEXT}
        async with AsyncLLM(pooling_model, io_processor_plugin="lengths", **options) as llm:
            work = await begun(llm)
            llm.abort("mine")
            with pytest.raises(RequestAbortedError):
                await work
            assert llm._running == {}
            work = await begun(llm)
            await llm.shutdown()
            with pytest.raises(EngineDeadError):
                await work

    with import_folder(io_processors, only=",".join(IO_PROCESSORS)):
        asyncio.run(run())
