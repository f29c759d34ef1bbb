"""`LLM` with `stream=True`, the forms of prompts, and what outputs tell, on a tiny model."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import groupby, zip_longest
from typing import Any

import pytest
from support.chat import GREEDY, HELLO, MODEL
from support.served_faults import RaisesOnBoom
from support.server import wait_until
from support.tiny import GOLDEN, LONG_CONTEXT, write_tiny_checkpoint

from fastdeploy_lp import LLM, EngineArgs, RequestOutputKind, SamplingParams
from fastdeploy_lp.engine.errors import InvalidRequestError, ProcessorUnavailableError, RequestFailedError
from fastdeploy_lp.entrypoints.declare import declare
from fastdeploy_lp.request.outputs import RequestOutput

TINY = "tiny-llama"
ENDLESS = SamplingParams(temperature=0, max_tokens=LONG_CONTEXT - 500, ignore_eos=True)
SECONDS = 10.0

Case = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with room for answers that do not end."""
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), TINY, context=LONG_CONTEXT))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    """With a processor that fails when asked to."""
    options: dict[str, Any] = {"logits_processors_max_faults": 0, "max_num_seqs": 4, "max_model_len": LONG_CONTEXT}
    with LLM(model, logits_processors=[RaisesOnBoom], **options) as running:
        yield running


@pytest.fixture(scope="module")
def other(model: str) -> Iterator[LLM]:
    """A second one, whose processor is in quarantine after one fault."""
    options: dict[str, Any] = {"logits_processors_max_faults": 1, "max_num_seqs": 2, "max_model_len": LONG_CONTEXT}
    with LLM(model, logits_processors=[RaisesOnBoom], **options) as running:
        yield running


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Prompts and what the reference implementation answers greedily, twice each."""
    read: list[Case] = json.loads((GOLDEN / TINY / "reference.json").read_text())["cases"]
    return read * 2


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{**GREEDY, **fields})


def as_reference() -> SamplingParams:
    """Parameters that give the reference's tokens."""
    return greedy(max_tokens=24, ignore_eos=True)


def running(llm: LLM) -> float:
    """Sequences in the worker's slots."""
    return llm._engine.metrics.registry.get_sample_value("fastdeploy_lp:num_requests_running") or 0.0


def wait_until_idle(llm: LLM) -> None:
    wait_until(lambda: running(llm) == 0, SECONDS)


# Streams


def test_outputs_grow_to_the_whole_answers(llm: LLM, cases: list[Case]) -> None:
    """More prompts than slots, so that some wait; every output extends the one before it."""
    last: dict[int, RequestOutput] = {}
    for output in llm.generate([case["prompt_ids"] for case in cases], as_reference(), stream=True):
        before = last.get(output.prompt_index)
        if before is not None:
            assert not before.finished
            assert before.request_id == output.request_id
            assert output.outputs.token_ids[: len(before.outputs.token_ids)] == before.outputs.token_ids
            assert output.outputs.text.startswith(before.outputs.text)
        last[output.prompt_index] = output
    assert len({output.request_id for output in last.values()}) == len(cases)
    for index, case in enumerate(cases):
        assert last[index].finished
        assert last[index].prompt_token_ids == case["prompt_ids"]
        assert last[index].outputs.token_ids == case["greedy_ids"]


def test_streams_of_several_prompts_are_mixed(llm: LLM) -> None:
    """They come as they are generated, in many pieces, not one prompt after the other."""
    outputs = llm.generate(["One", "Two"], greedy(max_tokens=2000, ignore_eos=True), stream=True)
    order: list[int] = []
    # A slow reader's pieces come together: how many there are is not certain.
    for output in outputs:
        order.append(output.prompt_index)
        if len(list(groupby(order))) > 4:
            break
    else:
        pytest.fail(f"the pieces came in this order: {order}")


@pytest.mark.parametrize("n", [1, 2])
def test_deltas_joined_are_the_whole_answer(llm: LLM, n: int) -> None:
    fields: dict[str, Any] = {"n": n, "seed": 3, "max_tokens": 20, "logprobs": 2, "stop": ["zzz"]}
    (whole,) = llm.generate("Once upon", SamplingParams(**fields), use_tqdm=False)
    texts, tokens, logprobs = [""] * n, [[] for _ in range(n)], [[] for _ in range(n)]  # type: ignore[var-annotated]
    params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
    outputs = list(llm.generate("Once upon", params, stream=True))
    for part in (part for output in outputs for part in output.completions):
        texts[part.index] += part.text
        tokens[part.index] += part.token_ids
        logprobs[part.index] += part.logprobs or []
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert texts == [each.text for each in whole.completions]
    assert tokens == [each.token_ids for each in whole.completions]
    assert logprobs == [each.logprobs for each in whole.completions]


def test_final_only_gives_whole_answers_as_they_end(llm: LLM) -> None:
    fields: dict[str, Any] = {"ignore_eos": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    endless, whole = greedy(max_tokens=ENDLESS.max_tokens, **fields), greedy(max_tokens=9, **fields)
    outputs = llm.generate(["Hi", "Hi"], [endless, whole], stream=True)
    first = next(outputs)
    outputs.close()  # type: ignore[attr-defined]
    assert (first.prompt_index, first.finished, len(first.outputs.token_ids)) == (1, True, 9)
    (only,) = llm.generate("Hi", whole, stream=True)
    assert only.outputs.token_ids == first.outputs.token_ids


def test_output_kind_does_not_concern_answers_that_come_whole(llm: LLM) -> None:
    plain, delta = llm.generate(["Hi", "Hi"], [greedy(), greedy(output_kind=RequestOutputKind.DELTA)], use_tqdm=False)
    assert plain.completions == delta.completions


def test_outputs_do_not_change_behind_the_readers_back(llm: LLM) -> None:
    outputs = list(llm.generate("Hi", greedy(ignore_eos=True, logprobs=0), stream=True))
    lengths = [len(output.outputs.token_ids) for output in outputs]
    assert lengths == sorted(set(lengths))
    assert [len(output.outputs.logprobs or []) for output in outputs] == lengths


def test_nothing_begins_before_the_first_output_is_asked_for(llm: LLM) -> None:
    wait_until_idle(llm)
    before = llm._engine.metrics.registry.get_sample_value("fastdeploy_lp:prompt_tokens_total")
    outputs = llm.generate("Hi", ENDLESS, stream=True)
    assert llm._engine.metrics.registry.get_sample_value("fastdeploy_lp:prompt_tokens_total") == before
    outputs.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["close", "drop"])
def test_leaving_the_iteration_aborts(llm: LLM, end: str) -> None:
    outputs = llm.generate(["Hello", "Hi", "Hey", "Ho", "waits"], ENDLESS, stream=True)
    next(outputs)
    if end == "close":
        outputs.close()  # type: ignore[attr-defined]
        assert list(outputs) == []
    else:
        del outputs
    wait_until_idle(llm)
    assert llm._engine.num_in_flight == 0


def test_an_interrupt_ends_the_iteration_and_leaves_the_llm_usable(llm: LLM, cases: list[Case]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def read() -> None:
        for output in llm.generate(["Hello", "Hi"], ENDLESS, stream=True):
            if len(output.outputs.token_ids) > 3:
                signal.setitimer(signal.ITIMER_REAL, 0.001)

    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            read()
    finally:
        signal.signal(signal.SIGALRM, usual)
    wait_until_idle(llm)
    (output,) = llm.generate(cases[1]["prompt_ids"], as_reference(), use_tqdm=False)
    assert output.outputs.token_ids == cases[1]["greedy_ids"]


def test_bad_requests_are_told_by_the_call_itself(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        llm.generate("Hi", greedy(max_tokens=10**6), stream=True)
    with pytest.raises(ValueError, match="output_kind"):
        SamplingParams(output_kind="delta")  # type: ignore[arg-type]


# Failures of single requests


BOOM = greedy(max_tokens=4, logits_processors_args={"boom": 2})


def test_a_failed_request_ends_the_call(llm: LLM) -> None:
    with pytest.raises(RequestFailedError, match="RaisesOnBoom"):
        llm.generate(["Hello", "Hi"], [ENDLESS, BOOM], use_tqdm=False)
    wait_until_idle(llm)
    with pytest.raises(RequestFailedError, match="RaisesOnBoom"):
        list(llm.generate(["Hello", "Hi"], [ENDLESS, BOOM], stream=True))
    wait_until_idle(llm)


def test_a_failed_request_may_leave_the_others_alone(llm: LLM) -> None:
    conversations = [HELLO, HELLO, [{"role": "user", "content": "Who are you?"}]]
    alone = [llm.chat(each, greedy(), use_tqdm=False)[0].outputs.token_ids for each in conversations[::2]]
    params = [greedy(), BOOM, greedy()]
    whole = llm.chat(conversations, params, raise_on_error=False, use_tqdm=False)
    streamed = {each.prompt_index: each for each in llm.chat(conversations, params, stream=True, raise_on_error=False)}
    for first, failed, third in (whole, [streamed[index] for index in range(3)]):
        assert [output.outputs.token_ids for output in (first, third)] == alone
        assert [(output.error_code, output.error_msg) for output in (first, third)] == [(200, None)] * 2
        assert (failed.error_code, failed.finished, failed.prompt_index) == (500, True, 1)
        assert failed.error_msg is not None
        assert "RaisesOnBoom" in failed.error_msg
        assert [each.token_ids for each in failed.completions] == [[]]


def test_quarantine_reads_as_unavailable(other: LLM) -> None:
    assert [output.error_code for output in other.generate("Hi", BOOM, raise_on_error=False, use_tqdm=False)] == [500]
    (output,) = other.generate("Hi", BOOM, raise_on_error=False, use_tqdm=False)
    assert output.error_code == 503
    with pytest.raises(ProcessorUnavailableError):
        list(other.generate("Hi", BOOM, stream=True))


# Prompts


# A text, and its tokens, of which the tokenizer of every tiny model makes one each.
FOX = ("a b", [67, 223, 68])


@pytest.mark.parametrize("form", ["text", "token ids", "text dict", "token dict", "both", "dict with None"])
def test_every_form_of_a_prompt(llm: LLM, form: str) -> None:
    text, ids = FOX
    prompt, shown = {
        "text": (text, text),
        "token ids": (ids, None),
        "text dict": ({"prompt": text}, text),
        "token dict": ({"prompt_token_ids": ids}, None),
        "both": ({"prompt": "what I call it", "prompt_token_ids": ids}, "what I call it"),
        "dict with None": ({"prompt": None, "prompt_token_ids": ids}, None),
    }[form]
    for given, count in ((prompt, 1), ([prompt], 1), ([prompt, text], 2)):
        outputs = llm.generate(given, greedy(), use_tqdm=False)
        assert len(outputs) == count
        for index, output in enumerate(outputs):
            assert output.prompt_index == index
            assert output.prompt_token_ids == ids
            assert output.outputs.token_ids == outputs[0].outputs.token_ids
        assert outputs[0].prompt == shown


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        (5, ["prompt:", "int"]),
        (None, ["prompt:", "NoneType"]),
        (b"Hi", ["prompt:", "bytes"]),
        ([5.0], ["prompt.0:", "float"]),
        (["Hi", None], ["prompt.1:", "NoneType"]),
        ({}, ["prompt:", "is empty", "prompt_token_ids"]),
        ({"prompt": None}, ["prompt:", "is empty"]),
        ({"prompt": 5}, ["prompt.prompt:", "int"]),
        ({"text": "Hi"}, ["prompt.text:", "prompt_token_ids"]),
        (["Hi", {"prompt": "Hi", "multi_modal_data": 5}], ["prompt.1.multi_modal_data:"]),
        ({"prompt_token_ids": "Hi"}, ["prompt.prompt_token_ids:", "list of token ids", "str"]),
        ([{"prompt_token_ids": [1, -1]}], ["prompt.0.prompt_token_ids.1:", "-1"]),
        ([{"prompt_token_ids": []}], ["prompt.0.prompt_token_ids:", "empty"]),
    ],
    ids=repr,
)
def test_a_prompt_that_is_none_is_named(llm: LLM, prompt: Any, parts: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt, greedy())
    assert str(caught.value).startswith(parts[0])
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_chat_takes_what_templates_take(llm: LLM) -> None:
    template = (
        "{{ greeting }}{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    (output,) = llm.chat(HELLO, greedy(max_tokens=1), chat_template=template, chat_template_kwargs={"greeting": "Ho "})
    assert output.prompt == "Ho Hello!!"
    (plain,) = llm.chat(HELLO, greedy(max_tokens=1), add_generation_prompt=False)
    begun = [*HELLO, {"role": "assistant", "content": "How do"}]
    (continued,) = llm.chat(begun, greedy(max_tokens=1), continue_final_message=True)
    assert plain.prompt == "user: Hello!\n"
    assert continued.prompt == "user: Hello!\nassistant: How do"
    with pytest.raises(InvalidRequestError, match=r"^tools"):
        llm.chat(HELLO, greedy(), tools=[{"type": "function", "function": {"name": "f"}}])


# What outputs tell


def test_metrics_are_in_order(llm: LLM) -> None:
    (whole,) = llm.generate("Hi", greedy(), use_tqdm=False)
    *growing, last = llm.generate("Hi", greedy(ignore_eos=True), stream=True)
    for output in (whole, last):
        assert output.metrics is not None
        arrival, first, finished = (
            output.metrics.arrival_time,
            output.metrics.first_token_time,
            output.metrics.finished_time,
        )
        assert first is not None
        assert finished is not None
        assert 1.6e9 < arrival <= first <= finished
    for output in growing:
        assert output.metrics is not None
        assert output.metrics.first_token_time is not None


class Recorder:
    """Made and used as tqdm is."""

    made: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        self.made, self.done, self.closed = options, 0, False

    def update(self, count: int) -> None:
        self.done += count

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_progress_of_ones_own(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[Recorder] = []

    def make(**options: Any) -> Recorder:
        made.append(Recorder(**options))
        return made[-1]

    llm.generate(["Hi", "Ho", "Hey"], greedy(max_tokens=1), use_tqdm=make)
    (recorder,) = made
    assert (recorder.made["total"], recorder.done, recorder.closed) == (3, 3, True)
    assert capsys.readouterr() == ("", "")


def test_a_stream_draws_no_progress(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    list(llm.generate("Hi", greedy(max_tokens=2), stream=True))
    assert capsys.readouterr() == ("", "")


def test_two_llms_in_one_process_work_side_by_side(llm: LLM, other: LLM, cases: list[Case]) -> None:
    case = cases[1]
    assert other.worker_pid != llm.worker_pid
    streams = [each.generate(case["prompt_ids"], as_reference(), stream=True) for each in (llm, other)]
    last: list[RequestOutput | None] = [None, None]
    # A slow reader's pieces come together, so that one may have fewer.
    for pair in zip_longest(*streams):
        last = [new or old for new, old in zip(pair, last, strict=True)]
    assert [output and output.outputs.token_ids for output in last] == [case["greedy_ids"]] * 2


def test_a_stream_outlives_neither_its_llm_nor_a_second_use(llm: LLM, other: LLM, cases: list[Case]) -> None:
    """The last test that uses the other one, whose end is nothing to the first."""
    outputs = other.generate("Hello", ENDLESS, stream=True)
    next(outputs)
    other.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        next(outputs)
    assert list(outputs) == []
    case = cases[1]
    (output,) = llm.generate(case["prompt_ids"], as_reference(), use_tqdm=False)
    assert output.outputs.token_ids == case["greedy_ids"]


def test_every_field_of_the_engine_arguments_is_a_keyword() -> None:
    defaults = vars(EngineArgs(model=MODEL))
    model, processors = defaults.pop("model"), defaults.pop("logits_processors")
    assert declare(model, processors, defaults).fd_config == declare(model, [], {}).fd_config
    with pytest.raises(ValueError, match="unexpected keyword argument 'max_sequences'") as caught:
        declare(model, [], {"max_sequences": 3})
    assert all(name in str(caught.value) for name in defaults)
