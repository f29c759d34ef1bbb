"""A server whose model two ranks share answers as one that computes alone, and gets over the loss of a rank."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chat import HELLO, opened_stream, post, wait_for_text
from support.ranks import rank_pids
from support.server import ServerProcess, process_exists, wait_until
from support.supervised import LONG, supervised_server, wait_for_new_worker
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.logits_processor import BUILTIN

RANKS = "2"
DIALECTS = {
    "Native": "support.hash_bias:Native",
    "Vllm": "support.hash_bias:Vllm",
    "RequestTwo": "support.hash_bias:RequestTwo",
    "RequestThree": "support.hash_bias:RequestThree",
    "Plugin": "Plugin=support.hash_bias:PLUGIN",
    "HuggingFace": "support.hash_bias_torch:HuggingFace",
    "TorchBoost": "support.torch_boost:TorchBoost",
}
HASH_BIAS = {"hash_bias": [7, 40.0]}
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


def serve(folder: Path, *options: str) -> ServerProcess:
    declared = [*DIALECTS.values(), *BUILTIN, "support.counting:CountsSteps"]
    sizes = ["--max-num-seqs", "4", "--vllm-compat"]
    return ServerProcess("--logits-processors", *declared, *sizes, *options, model=str(folder))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One rank."""
    with serve(write_tiny_checkpoint(tmp_path_factory.mktemp("one"))) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two ranks."""
    with serve(write_tiny_checkpoint(tmp_path_factory.mktemp("two")), "--tensor-parallel-size", RANKS) as running:
        yield running


def answer(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    """The one choice that a chat gets; greedy unless the fields say otherwise."""
    body = {
        "messages": HELLO,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }
    answered = post(server, body)
    assert answered.status_code == 200, answered.text
    choice: dict[str, Any] = answered.json()["choices"][0]
    return choice


def test_there_are_parameters_for_every_builtin() -> None:
    assert set(BUILTIN) <= set(PARAMS)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", PARAMS)
def test_processors_do_the_same(alone: ServerProcess, shared: ServerProcess, name: str, temperature: int) -> None:
    # A seed for greedy requests too: some processors draw numbers themselves.
    chosen = {"logits_processors": {name: PARAMS[name]}, "temperature": temperature, "seed": 5}
    assert answer(shared, **chosen)["token_ids"] == answer(alone, **chosen)["token_ids"]


def test_a_processor_sees_whole_logits_once_a_step(shared: ServerProcess) -> None:
    found = answer(shared, max_tokens=20, logits_processors={"CountsSteps": {"counts_steps": True}})
    assert found["token_ids"] == list(range(1, 21))


def test_logprobs_are_the_same(alone: ServerProcess, shared: ServerProcess) -> None:
    """Of the raw logits, which come together before anything else happens to them."""
    wanted = {"logprobs": True, "top_logprobs": 3}
    one, two = (answer(server, **wanted)["logprobs"]["content"] for server in (alone, shared))
    assert [each["token"] for each in one] == [each["token"] for each in two]
    assert [each["logprob"] for each in one] == pytest.approx([each["logprob"] for each in two], abs=1e-4)


def test_no_rank_is_left_behind(tmp_path: Path) -> None:
    """SIGTERM ends the group; so does the end of the API process, of which nobody can tell it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        folder = tmp_path / number.name
        folder.mkdir()
        with ServerProcess(
            "--tensor-parallel-size", RANKS, model=str(write_tiny_checkpoint(folder)), own_metrics_port=False
        ) as server:
            pids = [server.worker_pid, *rank_pids(server)]
            assert len(pids) == 2
            server.stop(number)
            wait_until(lambda pids=pids: not any(map(process_exists, pids)), 30)


def test_a_lost_rank_is_told_and_the_group_restarted(tmp_path: Path) -> None:
    """A stream that had begun is told which rank was lost; a request that is told nothing yet is answered."""
    with supervised_server(tmp_path, "--tensor-parallel-size", RANKS) as server:
        short = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
        before = post(server, short).json()["choices"]
        worker, (rank,) = server.worker_pid, rank_pids(server)
        with opened_stream(server, LONG) as payloads:
            wait_for_text(payloads)
            os.kill(rank, signal.SIGKILL)
            *_, error, done = list(payloads)
        assert json.loads(error)["error"]["code"] == "worker_lost"
        assert done == "[DONE]"
        assert "rank 1 of the tensor-parallel group was ended by SIGKILL" in server.log
        wait_for_new_worker(server, worker)
        assert not process_exists(worker)
        assert post(server, short).json()["choices"] == before
        # Nobody asks for anything, so that no call fails.
        worker, (rank,) = server.worker_pid, rank_pids(server)
        os.kill(rank, signal.SIGKILL)
        wait_for_new_worker(server, worker)
        assert post(server, short).json()["choices"] == before
        # The other way round: the first rank ends, and the others with it.
        worker, (rank,) = server.worker_pid, rank_pids(server)
        os.kill(worker, signal.SIGKILL)
        wait_for_new_worker(server, worker)
        wait_until(lambda: not process_exists(rank), 30)
