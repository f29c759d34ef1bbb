"""A server whose model two ranks share: golden tokens, dialects, whole logits, and the loss of a rank.

Every builtin, dialects of torch, and the ways of ending a rank that take long, are in `test_tensor_parallel_long.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.chat import chunks, opened_stream, post, text_of, wait_for_text
from support.golden import cases
from support.hash_bias import SEES_OUTPUT_ALONE, place
from support.processes import process_exists
from support.ranks import rank_pids
from support.server import ServerProcess, free_port, wait_until
from support.shared_server import HASH_BIAS, PADDLE_DIALECTS, RANKS, answer, serve
from support.supervised import LONG, wait_for_new_worker
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.openai.api_server import main

PROMPT = [321, 351, 459, 297]
OUTPUT_TOKENS = 4
LASTING = {**LONG, "max_tokens": 60}
# In one pass, the sums over the ranks are larger than those that one rank adds up; in two, none is.
LONG_PROMPT = [(11 * place) % 500 for place in range(400)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two ranks, none of which is left when the API process is killed, so that nobody can tell them."""
    folder, ranks = tmp_path_factory.mktemp("two"), ("--tensor-parallel-size", RANKS)
    with serve(folder, *ranks, dialects=PADDLE_DIALECTS, builtins=()) as running:
        yield running
        pids = [running.worker_pid, *rank_pids(running)]
        assert len(pids) == int(RANKS)
        running.stop(signal.SIGKILL)
        wait_until(lambda: not any(map(process_exists, pids)), 30)


def test_greedy_tokens_are_the_references(shared: ServerProcess) -> None:
    for case in cases("tiny-llama"):
        found = answer(shared, messages=None, prompt_token_ids=case.prompt, max_tokens=len(case.greedy))
        assert found["token_ids"] == case.greedy


def test_a_prefix_is_copied_on_every_rank(shared: ServerProcess) -> None:
    prompt = [(7 * place) % 500 for place in range(70)]
    short = {"prompt_token_ids": prompt[:60], "temperature": 0, "max_tokens": 6, "ignore_eos": True}
    cold = post(shared, short).json()
    post(shared, {**short, "prompt_token_ids": prompt})
    warm = post(shared, short).json()
    assert [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (cold, warm)] == [0, 59]
    assert warm["choices"] == cold["choices"]


@pytest.mark.parametrize("name", PADDLE_DIALECTS)
def test_a_dialect_sees_the_requests_tokens(shared: ServerProcess, name: str) -> None:
    """A bias that no logit of the model comes near chooses each token by the tokens before it."""
    expected: list[int] = []
    for _ in range(OUTPUT_TOKENS):
        expected.append(place(7, expected if name in SEES_OUTPUT_ALONE else [*PROMPT, *expected]))
    chosen = {"logits_processors": {name: HASH_BIAS}, "max_tokens": OUTPUT_TOKENS}
    assert answer(shared, messages=None, prompt_token_ids=PROMPT, **chosen)["token_ids"] == expected


def test_a_processor_sees_whole_logits_once_a_step(shared: ServerProcess) -> None:
    found = answer(shared, max_tokens=8, logits_processors={"CountsSteps": {"counts_steps": True}})
    assert found["token_ids"] == list(range(1, 9))


def test_the_group_is_restarted_after_the_loss_of_a_rank(shared: ServerProcess) -> None:
    """A stream that had begun goes on where it was, and a long prompt, no longer cached, is answered as before."""
    calm = post(shared, LASTING).json()["choices"][0]["message"]["content"]
    answer(shared, messages=None, prompt_token_ids=LONG_PROMPT[:200])
    before = answer(shared, messages=None, prompt_token_ids=LONG_PROMPT)
    worker, (rank,) = shared.worker_pid, rank_pids(shared)
    with opened_stream(shared, LASTING) as payloads:
        wait_for_text(payloads)
        os.kill(rank, signal.SIGKILL)
        rest = chunks(payloads)
    assert calm.endswith(text_of(rest))
    assert rest[-1]["choices"][0]["finish_reason"] == "length"
    wait_until(lambda: "rank 1 of the tensor-parallel group was ended by SIGKILL" in shared.log, 60)
    wait_for_new_worker(shared, worker)
    assert not process_exists(worker)
    assert answer(shared, messages=None, prompt_token_ids=LONG_PROMPT) == before


def test_what_is_wrong_with_another_ranks_part_is_one_line(
    tmp_path: Path, process_as_it_was: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first rank reads the first half of the embedding, which is as it should be."""
    path = write_tiny_checkpoint(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][-1, 0] = np.nan
    save_file(tensors, path)
    with pytest.raises(SystemExit) as raised:
        main(["--model", str(tmp_path), "--tensor-parallel-size", RANKS, "--port", str(free_port())])
    assert raised.value.code == 2
    loading, error = capfd.readouterr().err.splitlines()
    assert loading.endswith(f"loading {tmp_path}")
    assert error == f"error: {path}: tensor model.embed_tokens.weight holds NaN or infinity"
