"""Offline inference: `LLM` on the real model, and on a tiny one where the answer's text is nothing to a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chat import GREEDY, HELLO, MODEL, decode
from support.processes import process_exists
from support.processors import FORCED_TOKEN, NoLogitsProcessor, YourLogitsProcessor
from support.server import free_port, server_environment, wait_until
from support.tiny import GOLDEN, write_tiny_checkpoint

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.request.outputs import RequestOutput

ENABLED = {"enable_your_logits_processor": True}
SCRIPT_SECONDS = 600.0
PROCESS_SECONDS = 60.0

Case = dict[str, Any]


SETS, DOUBLES, BIASES = "support.processors:SetsToFive", "support.processors:Doubles", "LogitBiasLogitsProcessor"
CHAIN = [f"first={SETS}", f"doubles={DOUBLES}", f"second={SETS}", BIASES, YourLogitsProcessor]
TINY = "tiny-llama"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Processors by their names, one of them before and behind another, and one given as a class."""
    with LLM(MODEL, logits_processors=CHAIN, max_num_seqs=8) as running:
        yield running


@pytest.fixture(scope="module")
def tight_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny model with too little room for all of its slots, where nobody may wait in the worker."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), TINY)
    room: dict[str, Any] = {"max_num_batched_tokens": 16, "max_model_len": 128, "num_gpu_blocks_override": 12}
    # Which sequences are preempted does not depend on the machine's speed.
    room |= {"max_num_seqs": 4, "max_waiting_requests": 0, "prompt_step_seconds": 0.0}
    with LLM(str(model), **room) as running:
        yield running


@pytest.fixture(scope="module")
def tiny_cases() -> list[Case]:
    """Prompts of the tiny model and what the reference implementation answers greedily."""
    cases: list[Case] = json.loads((GOLDEN / TINY / "reference.json").read_text())["cases"]
    return cases


def greedy(**fields: Any) -> SamplingParams:
    """The golden cases' parameters."""
    return SamplingParams(**{**GREEDY, **fields})


def check_golden(output: RequestOutput, case: Case) -> None:
    """Text and tokens, and those of the prompt, are the reference's."""
    assert output.finished
    assert output.prompt_token_ids == case["prompt_ids"]
    assert output.outputs.token_ids == case["output_ids"]
    assert output.outputs.text == case["output_text"]
    assert output.outputs.finish_reason == case["finish"]
    assert output.outputs is output.completions[0]


# One that ends by itself, one that the limit ends, and the longest prompt.
@pytest.mark.parametrize("index", [0, 1, 6])
def test_golden_answer_alone(llm: LLM, golden_cases: list[Case], index: int) -> None:
    (output,) = llm.chat(golden_cases[index]["messages"], greedy())
    check_golden(output, golden_cases[index])


def test_golden_answers_in_one_batch_and_in_order(llm: LLM, golden_cases: list[Case]) -> None:
    outputs = llm.chat([case["messages"] for case in golden_cases], greedy())
    for output, case in zip(outputs, golden_cases, strict=True):
        check_golden(output, case)
        assert output.prompt == case["rendered"]
    assert len({output.request_id for output in outputs}) == len(golden_cases)


def test_more_prompts_than_slots(llm: LLM, golden_cases: list[Case]) -> None:
    """Waiting ones get the slots of finished ones, and no one's tokens with them."""
    many = golden_cases * 3
    limits = [greedy(max_tokens=1 + i % 5) for i in range(len(many))]
    outputs = llm.chat([case["messages"] for case in many], limits)
    expected = [case["output_ids"][: 1 + i % 5] for i, case in enumerate(many)]
    assert [output.outputs.token_ids for output in outputs] == expected


def test_answers_cold_and_warm_with_preemptions(tight_llm: LLM, tiny_cases: list[Case]) -> None:
    many = tiny_cases * 2
    prompts, params = [case["prompt_ids"] for case in many], greedy(max_tokens=24, ignore_eos=True)
    cold, warm = (tight_llm.generate(prompts, params, use_tqdm=False) for _ in "12")
    for outputs in (cold, warm):
        for output, case in zip(outputs, many, strict=True):
            assert output.finished
            assert output.prompt_token_ids == case["prompt_ids"]
            assert output.outputs.token_ids == case["greedy_ids"]
    assert sum(each.num_cached_tokens for each in cold) < sum(each.num_cached_tokens for each in warm)
    assert tight_llm._engine.metrics.scheduler_stats.num_preemptions > 0


def test_more_prompts_than_may_wait(tight_llm: LLM, tiny_cases: list[Case]) -> None:
    """They wait in this process, and nobody is refused."""
    case = tiny_cases[2]
    # No test before sent this beginning, of two blocks.
    prompt = case["prompt_ids"][:32][::-1]
    params = greedy(n=2, max_tokens=4, ignore_eos=True)
    (alone,) = tight_llm.generate(prompt, params, use_tqdm=False)
    outputs = tight_llm.generate([prompt] * 16, params, use_tqdm=False)
    for output in outputs:
        assert [each.token_ids for each in output.completions] == [alone.outputs.token_ids] * 2
    # The second time a prompt came, all but its last block was known.
    assert all(output.num_cached_tokens > 0 for output in outputs)


def test_text_and_token_ids_are_the_same_prompt(llm: LLM, golden_cases: list[Case]) -> None:
    case = golden_cases[0]
    for prompt in (case["rendered"], case["prompt_ids"]):
        (output,) = llm.generate(prompt, greedy())
        check_golden(output, case)
        assert output.prompt == (prompt if isinstance(prompt, str) else None)


def test_many_texts_and_many_token_ids(llm: LLM, golden_cases: list[Case]) -> None:
    some = [golden_cases[index] for index in (0, 6, 7)]
    for key in ("rendered", "prompt_ids"):
        for output, case in zip(llm.generate([case[key] for case in some], greedy()), some, strict=True):
            check_golden(output, case)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert llm.chat([]) == []


def test_each_prompt_may_have_its_own_parameters(llm: LLM, golden_cases: list[Case]) -> None:
    messages = golden_cases[1]["messages"]
    args = {"logit_bias": {900: 100.0}}
    params = [greedy(max_tokens=5), greedy(max_tokens=3, logits_processors_args=args), greedy(stop=" depths")]
    outputs = [output.outputs for output in llm.chat([messages] * 3, params)]
    assert outputs[0].token_ids == golden_cases[1]["output_ids"][:5]
    assert outputs[1].token_ids == [900] * 3
    assert (outputs[2].text, outputs[2].finish_reason, outputs[2].stop_reason) == ("In the", "stop", " depths")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_parameters_is_told(llm: LLM, count: int) -> None:
    with pytest.raises(ValueError, match=f"sampling_params: {count} given for 2 prompts"):
        llm.chat([HELLO, HELLO], [greedy()] * count)


def test_n_completions_of_a_seed_are_reproducible(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=8)
    (alone,) = llm.chat(HELLO, params)
    crowded, *_ = llm.chat([HELLO, HELLO, HELLO], [params, SamplingParams(max_tokens=8), greedy(max_tokens=8)])
    assert [completion.index for completion in alone.completions] == [0, 1, 2]
    assert [c.token_ids for c in alone.completions] == [c.token_ids for c in crowded.completions]
    assert len({c.text for c in alone.completions}) == 3


def test_parameters_are_left_as_they_were(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, stop="zzz", logits_processors_args={"logit_bias": {"5": 1}})
    before = SamplingParams(max_tokens=2, stop="zzz", logits_processors_args={"logit_bias": {"5": 1}})
    llm.chat(HELLO, params)
    assert params == before


def test_content_parts_are_joined(llm: LLM, golden_cases: list[Case]) -> None:
    case = golden_cases[0]
    parts = [{"type": "text", "text": text} for text in (case["prompt"][:9], case["prompt"][9:])]
    check_golden(llm.chat([{"role": "user", "content": parts}], greedy())[0], case)


def test_processor_given_as_a_class_works_where_it_is_enabled(llm: LLM, golden_cases: list[Case]) -> None:
    params = [greedy(max_tokens=8, logits_processors_args=ENABLED if i % 2 else None) for i in range(8)]
    outputs = llm.chat([case["messages"] for case in golden_cases], params)
    expected = [[FORCED_TOKEN] * 8 if i % 2 else case["output_ids"][:8] for i, case in enumerate(golden_cases)]
    assert [output.outputs.token_ids for output in outputs] == expected


@pytest.mark.parametrize(
    ("messages", "fields", "field"),
    [
        (HELLO, {"max_tokens": 100_000}, "max_tokens"),
        (HELLO, {"stop_token_ids": [5, 99_999]}, "stop_token_ids.1"),
        (HELLO, {"logits_processors_args": {"logit_bias": {99_999: 1}}}, "logits_processors_args.logit_bias.99999"),
        (HELLO, {"logits_processors_args": {"logit_bias": {5: float("nan")}}}, "logits_processors_args.logit_bias.5"),
        (HELLO, {"logits_processors_args": {5: 1}}, "logits_processors_args.5"),
        (HELLO, {"logits_processors_args": {"mine": object()}}, "logits_processors_args.mine"),
        (HELLO, {"logits_processors_args": {"mine": 2**70}}, "logits_processors_args.mine"),
        (HELLO, {"top_k": 2**70}, "top_k"),
        ([[]], {}, "messages"),
        ([{"role": "user"}], {}, "messages"),
        ([{"content": "Hi"}], {}, "messages"),
        ([{"role": "user", "content": 5}], {}, "messages"),
        ([{"role": "user", "content": "\ud800"}], {}, "messages"),
        ("Hi", {}, "messages"),
        ([{"role": "user", "content": "word " * 3000}], {}, "messages"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_what_cannot_be_answered_is_named(llm: LLM, messages: Any, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}\b"):
        llm.chat(messages, SamplingParams(**{"max_tokens": 1, **fields}))


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ("", "prompt"),
        (["Hi", ""], "prompt"),
        ([[]], "prompt"),
        ([1, 99_999], "prompt.1"),
        ([[1], [1, 2, -1]], "prompt"),
        ([1, "Hi"], "prompt.1"),
        ([1] * 2048, "prompt"),
        ("\ud800", "prompt"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_prompt_that_cannot_be_continued_is_named(llm: LLM, prompt: Any, field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}\b"):
        llm.generate(prompt, greedy(max_tokens=1))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"logits_processors_args": [1]}, "logits_processors_args"),
    ],
)
def test_sampling_params_name_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: "):
        SamplingParams(**fields)


def test_a_refused_batch_leaves_nothing_running(llm: LLM, golden_cases: list[Case]) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        llm.chat([HELLO, HELLO], [greedy(), greedy(max_tokens=100_000)])
    check_golden(llm.chat(golden_cases[0]["messages"], greedy())[0], golden_cases[0])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"max_num_sequences": 5}, ["max_num_sequences", "max_num_seqs"]),
        ({"max_num_seqs": 0}, ["max_num_seqs: 0"]),
        ({"max_num_seqs": "8"}, ["max_num_seqs"]),
        ({"max_model_len": 1_000_000}, ["max_model_len: 1000000", "8192"]),
        ({"engine_worker_queue_port": 70_000}, ["engine_worker_queue_port: 70000"]),
        ({"logits_processors": ["Nothing"]}, ["'Nothing'", "LogitBiasLogitsProcessor"]),
        ({"logits_processors": [NoLogitsProcessor]}, ["NoLogitsProcessor", "must be a subclass of LogitsProcessor"]),
        ({"logits_processors": [YourLogitsProcessor] * 2}, ["is a second YourLogitsProcessor", "another_name="]),
        ({"logits_processors": "LogitBiasLogitsProcessor"}, ["logits_processors", "list"]),
        ({"logits_processors": [5]}, ["logits_processors"]),
        ({"model": "nowhere"}, ["nowhere", MODEL]),
    ],
    ids=str,
)
def test_option_that_cannot_be_used_is_named(options: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        LLM(**{"model": MODEL, **options})
    assert all(part in str(raised.value) for part in parts), raised.value


def test_progress_goes_to_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.chat([HELLO, HELLO], greedy(max_tokens=1))
    shown = capsys.readouterr()
    assert "2/2" in shown.err
    assert shown.out == ""


def test_progress_can_be_left_out(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.chat(HELLO, greedy(max_tokens=1), use_tqdm=False)
    llm.generate("Hi", greedy(max_tokens=1), use_tqdm=False)
    assert capsys.readouterr() == ("", "")


def needed_bias(llm: LLM, prompt_ids: list[int], token: int, *names: str) -> int:
    """The bias, behind these processors that work on a token's logit, with which it becomes the greedy one."""

    def is_chosen(bias: int) -> bool:
        selected = {name: {"order_token": token} for name in names} | {BIASES: {"logit_bias": {token: bias}}}
        (output,) = llm.generate(prompt_ids, greedy(max_tokens=1, logits_processors=selected), use_tqdm=False)
        return output.outputs.token_ids == [token]

    return bisect_left(range(-100, 100), True, key=is_chosen) - 100


def test_declaration_order_is_execution_order(llm: LLM, golden_cases: list[Case]) -> None:
    """5 doubled is 10; doubled and then set to 5 is 5: the token needs 5 more to win."""
    prompt_ids = golden_cases[0]["prompt_ids"]
    needs = needed_bias(llm, prompt_ids, FORCED_TOKEN, "first", "doubles")
    assert -100 < needs < 95
    assert needed_bias(llm, prompt_ids, FORCED_TOKEN, "doubles", "second") == needs + 5
    # That of the names in a dict is nothing to it.
    assert needed_bias(llm, prompt_ids, FORCED_TOKEN, "doubles", "first") == needs


def test_shutdown_ends_the_worker_and_may_be_repeated(tight_llm: LLM) -> None:
    """The last test that uses it; its fixture shuts it down once more."""
    worker_pid = tight_llm.worker_pid
    assert worker_pid is not None
    assert process_exists(worker_pid)
    tight_llm.shutdown()
    assert not process_exists(worker_pid)
    tight_llm.shutdown()
    with pytest.raises(RuntimeError, match="shut"):
        tight_llm.chat(HELLO, greedy(max_tokens=1), use_tqdm=False)


def run_script(folder: Path, text: str) -> list[str]:
    """The lines that a script prints; it has to end by itself, with status 0 and nothing but progress on stderr."""
    script = folder / "script.py"
    script.write_text(text)
    temporary = folder / "t"
    temporary.mkdir()
    # A user's shell has none of the thread counts that the tests' own process sets, and Paddle comments on them.
    environment = server_environment(every_core=True) | {"TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(temporary) == []
    noise = [part for part in done.stderr.replace("\r", "\n").splitlines() if part and "generating:" not in part]
    assert noise == []
    return done.stdout.splitlines()


# The document's offline example but for the package's name, the model, the ports (which may be in use), token ids and
# fewer tokens. Behind its processor it has one of a class of the script itself.
SCRIPT = """
from fastdeploy_lp import LLM, LogitsProcessor, SamplingParams

TOKEN = 901


class Mine(LogitsProcessor):
    def __init__(self, fd_config):
        self.rows = []

    def update_state(self, share_inputs):
        active = ~share_inputs["stop_flags"][:, 0]
        args = share_inputs["logits_processors_args"]
        self.rows = [bool(a.mine) for a, on in zip(args, active) if on]

    def apply(self, logits):
        for row, wanted in enumerate(self.rows):
            if wanted:
                logits[row, TOKEN] = 1000.0
        return logits


llm = LLM(
    model={model!r},
    engine_worker_queue_port={queue_port},
    cache_queue_port={cache_port},
    logits_processors=["support.processors:YourLogitsProcessor", Mine],
)

messages = [{{"role": "user", "content": "Who is Lu Xun?"}}]
sampling_params = SamplingParams(
    top_p=0.95,
    max_tokens=32,
    logits_processors_args={args!r},
)
outputs = llm.chat(messages, sampling_params)
print(outputs[0].outputs.text)

messages = [[{{"role": "user", "content": "What is the capital of France?"}}]] * 2
params = [
    SamplingParams(temperature=0, max_tokens=4, logits_processors_args={{"mine": True}}),
    SamplingParams(temperature=0, max_tokens=4),
]
for output in llm.chat(messages, params):
    print(*output.outputs.token_ids)
print(llm.worker_pid)
"""


def test_a_script_with_a_class_of_its_own_runs_and_ends_by_itself(tmp_path: Path, light_checkpoint: Path) -> None:
    ports = {"queue_port": free_port(), "cache_port": free_port()}
    script = SCRIPT.format(model=str(light_checkpoint), args=ENABLED, **ports)
    *text, with_it, without, worker_pid = run_script(tmp_path, script)
    assert "\n".join(text) == decode(*[FORCED_TOKEN] * 32)
    assert with_it == "901 901 901 901"
    assert "901" not in without.split()
    wait_until(lambda: not process_exists(int(worker_pid)), PROCESS_SECONDS)


def test_an_llm_that_cannot_be_made_leaves_no_thread(light_checkpoint: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="chat_template"):
        LLM(str(light_checkpoint), chat_template="{% nothing")
    # Threads of earlier tests may end meanwhile.
    assert not set(threading.enumerate()) - before
