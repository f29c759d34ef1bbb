"""The default model through PaddleFormers, in the engine and over HTTP, and directories of PaddleNLP."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("paddleformers.nn", reason="PaddleFormers is not installed; make test-paddleformers installs it")

from formers.through_formers import Served
from support.golden import Run, assert_close
from support.sequences import chain_of, request, run_to_end
from support.server import ServerProcess
from support.tiny import GOLDEN

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

# PaddleFormers' own.
pytestmark = pytest.mark.filterwarnings("default")
MAX_TOKENS = 32


def test_golden_tokens_of_prompts_in_chunks_and_in_a_crowd(golden_cases: list[dict[str, Any]]) -> None:
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 5, "max_num_batched_tokens": 48}
    args = EngineArgs(model="smollm2-135m", model_impl="paddleformers", prompt_step_seconds=0.0, **options)
    fd_config = args.create_fd_config(show_progress=False)
    engine = EngineCore(fd_config, chain_of([], fd_config))
    wanted = [request(str(i), case["prompt_ids"], max_tokens=MAX_TOKENS) for i, case in enumerate(golden_cases)]
    ran = run_to_end(engine, wanted)
    assert [ran[str(i)].token_ids for i in range(len(golden_cases))] == [case["output_ids"] for case in golden_cases]


@pytest.mark.parametrize("name", ["paddlenlp-llama", "paddlenlp-qwen2"])
def test_directories_of_paddlenlp(name: str) -> None:
    """What PaddleNLP itself wrote gives what it computed."""
    files = resolve_model(str(GOLDEN / name), show_progress=False, need_tokenizer=False)
    reference = np.load(GOLDEN / name / "reference.npz")
    (logits,) = Served(files.directory).logits(Run(reference["ids"].tolist(), seat=0))
    assert_close(logits, reference["logits"])


def test_a_server_answers_with_the_reference_and_applies_the_chain(golden_cases: list[dict[str, Any]]) -> None:
    case = next(each for each in golden_cases if each["prompt"] == "What is the capital of France?")
    body = {"model": "default", "messages": case["messages"], "temperature": 0.0, "max_tokens": MAX_TOKENS}
    options = ["--model-impl", "paddleformers", "--max-model-len", "256"]
    with ServerProcess(*options, "--logits-processors", "LogitBiasLogitsProcessor") as server:
        plain = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300.0).json()
        banned = {"logits_processors_args": {"logit_bias": {str(case["output_ids"][5]): -100.0}}}
        biased = httpx.post(f"{server.url}/v1/chat/completions", json=body | banned, timeout=300.0).json()
    assert plain["choices"][0]["message"]["content"] == case["output_text"]
    assert "Paris" not in biased["choices"][0]["message"]["content"].split()
