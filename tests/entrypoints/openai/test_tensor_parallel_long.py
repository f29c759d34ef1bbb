"""What ranks may not change: every builtin, logprobs, the default model; and the ways in which ranks end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import process_exists
from support.ranks import rank_pids
from support.server import ServerProcess, wait_until
from support.shared_server import DIALECTS, HASH_BIAS, RANKS, answer, serve
from support.supervised import supervised_server, wait_for_new_worker
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.logits_processor import BUILTIN

pytestmark = pytest.mark.long
PARAMS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(DIALECTS, HASH_BIAS),
    "TorchBoost": {"token_id": 99, "boost": 3.0},
    "LogitBiasLogitsProcessor": {"logit_bias": {"17": 2.5, "18": -100.0}},
    "CiteFromPromptLogitsProcessor": {"cite_boost": 2.0},
    "ForceLastPhraseLogitsProcessor": {"last_phrase": "the dog"},
    "ForcedSequenceLogitsProcessor": {"forced_sequence": "lazy fox"},
    "GenLengthLogitsProcessor": {"gen_length_boost": 1.0},
    "LowConfidenceFallbackLogitsProcessor": {"fallback_phrase": "the fox", "fallback_min_p": 0.5},
    "MaxTimeLogitsProcessor": {"max_time": 1000.0},
    "MultipleChoiceLogitsProcessor": {"choices": ["quick", "brown"]},
    "ClassProbabilitiesLogitsProcessor": {"class_labels": ["quick", "brown"]},
    "ThinkingBudgetLogitsProcessor": {"thinking_budget": 3, "think_start": "the", "think_end": "dog"},
    "TriggerPhraseLogitsProcessor": {"trigger_phrase": "the dog", "trigger_after_seconds": 1000.0},
    "WatermarkLogitsProcessor": {"watermark_key": 5},
    "SequenceBiasLogitsProcessor": {"sequence_bias": [[[3, 4], 2.0], [[9], 2.0]]},
    "AllowedTokensLogitsProcessor": {"allowed_token_ids": list(range(40, 90))},
    "BadWordsLogitsProcessor": {"bad_words_token_ids": [[token] for token in range(100, 400)]},
    "MinTokensLogitsProcessor": {"min_tokens": 4},
    "RepetitionPenaltyLogitsProcessor": {"repetition_penalty": 1.5},
    "PresencePenaltyLogitsProcessor": {"presence_penalty": 1.5},
    "FrequencyPenaltyLogitsProcessor": {"frequency_penalty": 1.5},
    "NoRepeatNGramLogitsProcessor": {"no_repeat_ngram_size": 1},
    "DRYLogitsProcessor": {"dry_multiplier": 2.0},
    "ExponentialLengthDecayLogitsProcessor": {"exponential_decay_length_penalty": [2, 1.5]},
    "MinPLogitsProcessor": {"min_p": 0.2},
    "TopNSigmaLogitsProcessor": {"top_n_sigma": 1.0},
    "TypicalPLogitsProcessor": {"typical_p": 0.5},
    "EpsilonCutoffLogitsProcessor": {"epsilon_cutoff": 0.003},
    "EtaCutoffLogitsProcessor": {"eta_cutoff": 0.003},
    "XTCLogitsProcessor": {"xtc_probability": 0.5, "xtc_threshold": 0.001},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One rank."""
    with serve(tmp_path_factory.mktemp("one")) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two ranks."""
    with serve(tmp_path_factory.mktemp("two"), "--tensor-parallel-size", RANKS) as running:
        yield running


def test_there_are_parameters_for_every_builtin() -> None:
    assert set(BUILTIN) <= set(PARAMS)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", PARAMS)
def test_processors_do_the_same(alone: ServerProcess, shared: ServerProcess, name: str, temperature: int) -> None:
    # A seed for greedy requests too: some processors draw numbers themselves.
    chosen = {"logits_processors": {name: PARAMS[name]}, "temperature": temperature, "seed": 5}
    assert answer(shared, **chosen)["token_ids"] == answer(alone, **chosen)["token_ids"]


def test_logprobs_are_the_same(alone: ServerProcess, shared: ServerProcess) -> None:
    """Of the raw logits, which come together before anything else happens to them."""
    wanted = {"logprobs": True, "top_logprobs": 3}
    one, two = (answer(server, **wanted)["logprobs"]["content"] for server in (alone, shared))
    assert [each["token"] for each in one] == [each["token"] for each in two]
    assert [each["logprob"] for each in one] == pytest.approx([each["logprob"] for each in two], abs=1e-4)


def test_the_default_model_on_three_ranks(golden_cases: list[dict[str, Any]]) -> None:
    """Nine heads and three heads of keys and values: one of these and three of those on each."""
    prompts = [{"prompt_token_ids": case["prompt_ids"]} for case in golden_cases]
    with LLM(model="smollm2-135m", tensor_parallel_size=3, max_model_len=256, max_num_seqs=8) as llm:
        found = llm.generate(prompts, SamplingParams(max_tokens=32, temperature=0))
    assert [list(each.outputs.token_ids) for each in found] == [case["output_ids"] for case in golden_cases]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM ends the group; so does the end of the API process, of which nobody can tell it."""
    model = str(write_tiny_checkpoint(tmp_path))
    with ServerProcess("--tensor-parallel-size", RANKS, model=model, own_metrics_port=False) as server:
        pids = [server.worker_pid, *rank_pids(server)]
        assert len(pids) == int(RANKS)
        server.stop(number)
        wait_until(lambda: not any(map(process_exists, pids)), 30)


def test_ranks_that_end_while_nothing_is_computed(tmp_path: Path) -> None:
    """No call fails then, and the other ranks have to be told by the end of a process alone."""
    with supervised_server(tmp_path, "--tensor-parallel-size", RANKS) as server:
        before = answer(server)
        worker, (rank,) = server.worker_pid, rank_pids(server)
        os.kill(rank, signal.SIGKILL)
        wait_for_new_worker(server, worker)
        assert answer(server) == before
        worker, (rank,) = server.worker_pid, rank_pids(server)
        os.kill(worker, signal.SIGKILL)
        wait_for_new_worker(server, worker)
        wait_until(lambda: not process_exists(rank), 30)
