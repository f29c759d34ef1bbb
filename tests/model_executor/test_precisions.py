"""The precisions on the default model."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from support.sequences import request, run_to_end

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

pytestmark = pytest.mark.slow
BLOCK_SIZE, BLOCKS_PER_SEAT = 32, 8
MAX_TOKENS = 16


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> EngineCore:
    """In the precision of the parameter; no test finds what another one left in the cache."""
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 16, "block_size": BLOCK_SIZE}
    options |= {"dtype": "bfloat16"} if request.param == "bfloat16" else {"quantization": request.param}
    args = EngineArgs(model="smollm2-135m", enable_prefix_caching=False, **options)
    fd_config = args.create_fd_config(show_progress=False)
    return EngineCore(fd_config, LogitsProcessorChain([], fd_config))


# Those of float32 are in worker/test_golden.py.
@pytest.mark.parametrize("engine", ["w8a16", "bfloat16"], indirect=True)
def test_greedy_tokens_are_the_references(engine: EngineCore, golden_cases: list[dict[str, Any]]) -> None:
    ran = run_to_end(
        engine,
        [request(str(i), case["prompt_ids"], max_tokens=MAX_TOKENS) for i, case in enumerate(golden_cases)],
    )
    found = [ran[str(i)].token_ids for i in range(len(golden_cases))]
    assert found == [case["output_ids"][:MAX_TOKENS] for case in golden_cases]


def logits_of(model: CausalLM, *chunks: SequenceChunk) -> np.ndarray:
    logits: np.ndarray = model.compute_logits(model.forward(chunks)).numpy()
    return logits.view(np.uint32)


def chunk(tokens: list[int], seat: int, start: int, stop: int) -> SequenceChunk:
    table = 1 + seat * BLOCKS_PER_SEAT + np.arange(BLOCKS_PER_SEAT)
    return SequenceChunk(np.array(tokens[start:stop]), start, table, num_outputs=stop - start)


@pytest.mark.parametrize("engine", ["bfloat16", "w8a8"], indirect=True)
@paddle.no_grad()
def test_logits_have_the_same_bits_alone_in_a_crowd_and_cut_anywhere(
    engine: EngineCore, golden_cases: list[dict[str, Any]], ops: object
) -> None:
    rounded = engine.runner._model
    prompts: list[list[int]] = [case["prompt_ids"] + case["output_ids"] for case in golden_cases[::3]]
    alone = [logits_of(rounded, chunk(prompt, 0, 0, len(prompt))) for prompt in prompts]
    seats = range(len(prompts), 0, -1)
    crowd = logits_of(
        rounded, *(chunk(prompt, seat, 0, len(prompt)) for prompt, seat in zip(prompts, seats, strict=True))
    )
    np.testing.assert_array_equal(crowd, np.concatenate(alone))
    for size, count in ((1, BLOCK_SIZE + 3), (13, len(prompts[0]))):
        parts = [
            logits_of(rounded, chunk(prompts[0], 15, start, min(start + size, count)))
            for start in range(0, count, size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), alone[0][:count])
