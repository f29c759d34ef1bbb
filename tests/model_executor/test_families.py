"""Every family against the reference, on both executors: at every position, cut anywhere, and in a crowd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from support.golden import (
    CLEAR_LEAD,
    EXECUTORS,
    MAX_MODEL_LEN,
    MAX_SEQS,
    Model,
    Run,
    assert_close,
    cases,
    model,
)
from support.hf_reference import ROUNDED, VARIANTS
from support.sequences import request, run_to_end, tiny_engine
from support.server import server_environment
from support.tiny import GOLDEN

FAMILIES = ("tiny-llama", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3", "tiny-ernie45", "tiny-phi3")
MADE = (*(name for name in VARIANTS if name not in FAMILIES), *(f"{name}-bf16" for name in ROUNDED))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that the reference library made for this run, with what it computes."""
    folder = tmp_path_factory.mktemp("made")
    done = subprocess.run(
        [sys.executable, "-m", "support.hf_reference", str(folder), *MADE],
        capture_output=True,
        text=True,
        env=server_environment(),
    )
    assert done.returncode == 0, done.stderr
    return folder


def assert_agrees(name: str, executor: str) -> None:
    one = Model(name, executor)
    for case in cases(name):
        (logits,) = one.logits(Run(case.prompt, seat=1))
        assert_close(logits, case.logits)
        if case.lead > CLEAR_LEAD:
            assert one.greedy(case.prompt, len(case.greedy)) == case.greedy


# Right answers


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_tokens_are_those_of_the_reference(name: str, executor: str) -> None:
    assert_agrees(name, executor)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MADE)
def test_options_of_families_and_bfloat16_weights_are_those_of_the_reference(
    name: str, executor: str, made: Path
) -> None:
    """A reference of bfloat16 weights computes in float32 on the rounded weights, as we do."""
    assert_agrees(str(made / name), executor)


def test_near_ties_are_few() -> None:
    leads = [case.lead for name in FAMILIES for case in cases(name)]
    assert sum(lead <= CLEAR_LEAD for lead in leads) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_gives_the_reference_greedy_tokens(name: str) -> None:
    engine = tiny_engine(name=name, max_model_len=MAX_MODEL_LEN, max_num_seqs=3)
    clear = {str(i): case for i, case in enumerate(cases(name)) if case.lead > CLEAR_LEAD}
    requests = [request(i, case.prompt, max_tokens=len(case.greedy), ignore_eos=True) for i, case in clear.items()]
    ran = run_to_end(engine, requests)
    assert {i: ran[i].token_ids for i in clear} == {i: case.greedy for i, case in clear.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pass_gives_the_hidden_state_of_the_last_token_unless_asked_for_more(name: str) -> None:
    runs = [Run(cases(name)[index].prompt, seat=index) for index in (2, 0, 1)]
    logits = model(name).last_logits(*runs)
    assert_close(logits, np.stack([cases(name)[index].logits[-1] for index in (2, 0, 1)]))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 32, 99])
def test_a_prompt_in_chunks_gives_the_same_logits(name: str, size: int) -> None:
    case = cases(name)[3]
    parts = [
        model(name).logits(Run(case.prompt[start : start + size], seat=1, start=start))[0]
        for start in range(0, len(case.prompt), size)
    ]
    assert_close(np.concatenate(parts), case.logits)


@settings(max_examples=12)
@given(st.data())
def test_sequences_of_mixed_lengths_cut_anywhere_share_a_batch(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FAMILIES))
    order = data.draw(st.permutations(range(len(cases(name)))))
    seats = data.draw(st.permutations(range(MAX_SEQS)))
    done: dict[int, list[np.ndarray]] = {index: [] for index in order}
    starts = dict.fromkeys(order, 0)
    while open_cases := [index for index in order if starts[index] < len(cases(name)[index].prompt)]:
        runs = []
        for index in open_cases:
            rest = cases(name)[index].prompt[starts[index] :]
            size = min(data.draw(st.sampled_from([1, 1, 7, 30, 100])), len(rest))
            runs.append(Run(rest[:size], seats[index], starts[index]))
            starts[index] += size
        for index, logits in zip(open_cases, model(name).logits(*runs), strict=True):
            done[index].append(logits)
    for index in order:
        assert_close(np.concatenate(done[index]), cases(name)[index].logits)


def test_what_a_seat_held_before_does_not_show() -> None:
    one, (_, _, shorter, longer) = model("tiny-llama"), cases("tiny-llama")
    one.logits(Run(longer.prompt, seat=2))
    assert_close(one.logits(Run(shorter.prompt, seat=2))[0], shorter.logits)


def test_logits_may_be_overwritten_without_harm_to_the_next_pass() -> None:
    one, case = model("tiny-llama"), cases("tiny-llama")[1]
    with paddle.no_grad():
        logits = one.executor.compute_logits(one.executor.forward([Run(case.prompt, seat=0).chunk]))
        logits.fill_(1e9)
    assert_close(one.logits(Run(case.prompt, seat=0))[0], case.logits)


def test_shards_and_other_precisions_give_the_same_bits(tmp_path: Path) -> None:
    """Weights that every precision can hold, in one file of float32 and in three of half floats with an index."""
    tensors = load_file(GOLDEN / "tiny-qwen3" / "model.safetensors")
    tensors = {name: array.astype(np.float16).astype(np.float32) for name, array in tensors.items()}
    config = (GOLDEN / "tiny-qwen3" / "config.json").read_text()
    for folder in ("whole", "sharded"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(config)
    save_file(tensors, tmp_path / "whole" / "model.safetensors")
    parts = [dict(list(tensors.items())[start::3]) for start in range(3)]
    weight_map = {}
    for number, part in enumerate(parts):
        name = f"model-{number}.safetensors"
        save_file({key: array.astype(np.float16) for key, array in part.items()}, tmp_path / "sharded" / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))
    prompt = cases("tiny-qwen3")[3].prompt
    for executor in EXECUTORS:
        (whole,) = Model(str(tmp_path / "whole"), executor).logits(Run(prompt, seat=0))
        (sharded,) = Model(str(tmp_path / "sharded"), executor).logits(Run(prompt, seat=0))
        np.testing.assert_array_equal(whole, sharded)
