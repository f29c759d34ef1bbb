"""`AsyncLLM` on a tiny model, and what `LLM` tells of its logits processors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from support.chat import HELLO
from support.documents import DummyLogitsProcessor
from support.served_faults import RaisesOnBoom
from support.tiny import GOLDEN, LONG_CONTEXT, write_tiny_checkpoint

from fastdeploy_lp import LLM, AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams
from fastdeploy_lp.engine.errors import (
    InvalidRequestError,
    ProcessorUnavailableError,
    RequestFailedError,
)
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.outputs import RequestOutput

TINY = "tiny-llama"
VOCAB_SIZE = 512
TOKENS = 8
PLAIN = SamplingParams(temperature=0, max_tokens=TOKENS)
ENDLESS = SamplingParams(temperature=0, max_tokens=LONG_CONTEXT - 500, ignore_eos=True)
# As the reference was asked.
REFERENCE = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
TARGET, OTHER_TARGET = 67, 42
ABORT_SECONDS = 5.0
MAX_FAULTS = 2

Case = dict[str, Any]
Prompt = str | Sequence[int] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
Result = TypeVar("Result")


class Engine:
    """A started `AsyncLLM` and the event loop it lives on, which runs while a test waits for something."""

    def __init__(self, model: str) -> None:
        self._loop = asyncio.new_event_loop()
        processors = ["LogitBiasLogitsProcessor", DummyLogitsProcessor]
        args = EngineArgs(model=model, max_model_len=LONG_CONTEXT, logits_processors=processors)
        self.llm = AsyncLLM.from_engine_args(args)
        self.run(self.llm.start())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(work, 120))

    def close(self) -> None:
        self.run(self.llm.shutdown())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with room for answers that do not end."""
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), TINY, context=LONG_CONTEXT))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Prompts and what the reference implementation answers greedily."""
    read: list[Case] = json.loads((GOLDEN / TINY / "reference.json").read_text())["cases"]
    return read


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[Engine]:
    """Shared by the tests that leave it as it was."""
    made = Engine(model)
    yield made
    made.close()


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    """The same offline, with a processor that fails when asked to."""
    processors = ["LogitBiasLogitsProcessor", DummyLogitsProcessor, RaisesOnBoom]
    with LLM(model, logits_processors=processors, logits_processors_max_faults=MAX_FAULTS) as running:
        yield running


async def answer(llm: AsyncLLM, prompt: Prompt, params: SamplingParams | None = PLAIN) -> RequestOutput:
    last = None
    async for output in llm.generate(prompt, params):
        last = output
    assert last is not None
    assert last.finished
    return last


async def none_running(llm: AsyncLLM) -> None:
    """Until the worker says that every slot is empty."""
    registry = llm._engine.metrics.registry  # type: ignore[union-attr]

    async def poll() -> None:
        while registry.get_sample_value("fastdeploy_lp:num_requests_running") != 0:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), ABORT_SECONDS)


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs.token_ids


# Prompts


def test_text_token_ids_and_chat_are_the_same_prompt(engine: Engine) -> None:
    text = "user: Hello!\nassistant: "
    whole = engine.run(answer(engine.llm, text))
    ids = whole.prompt_token_ids
    assert len(ids) > 10
    for prompt in (ids, HELLO):
        output = engine.run(answer(engine.llm, prompt))
        assert output.prompt_token_ids == ids
        assert output.completions == whole.completions
        assert output.prompt == (None if prompt is ids else text)


@pytest.mark.parametrize("index", range(4))
def test_tokens_are_those_of_the_reference(engine: Engine, cases: list[Case], index: int) -> None:
    output = engine.run(answer(engine.llm, cases[index]["prompt_ids"], REFERENCE))
    assert tokens(output) == cases[index]["greedy_ids"]
    assert output.outputs.finish_reason == "length"


def test_outputs_grow_to_the_whole_answer(engine: Engine) -> None:
    async def watch() -> list[tuple[list[int], str, bool]]:
        params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        outputs = engine.llm.generate("Once upon", params, request_id="grows")
        return [(list(tokens(output)), output.outputs.text, output.finished) async for output in outputs]

    seen = engine.run(watch())
    assert len(seen) > 3
    for (before, text_before, finished), (after, text, _) in pairwise(seen):
        assert after[: len(before)] == before
        assert text.startswith(text_before)
        assert not finished
    assert len(seen[-1][0]) == 400
    assert seen[-1][2]


def test_concurrent_requests_equal_what_llm_answers(engine: Engine, llm: LLM) -> None:
    questions = ["Hello!", "Who are you?", "What is the capital of France?", "Tell me about the sea."] * 4
    conversations = [[{"role": "user", "content": question}] for question in questions]
    params = [
        SamplingParams(temperature=0, max_tokens=TOKENS),
        SamplingParams(temperature=0, max_tokens=TOKENS, extra_args={"target_token": TARGET}),
        SamplingParams(temperature=1, seed=5, max_tokens=TOKENS),
        SamplingParams(temperature=0, max_tokens=TOKENS, logit_bias={OTHER_TARGET: 100.0}),
        SamplingParams(n=2, temperature=1, seed=9, max_tokens=TOKENS),
    ]
    mixed = [params[index % len(params)] for index in range(len(conversations))]

    async def answer_all() -> list[RequestOutput]:
        pairs = zip(conversations, mixed, strict=True)
        return list(await asyncio.gather(*(answer(engine.llm, messages, each) for messages, each in pairs)))

    expected = llm.chat(conversations, mixed, use_tqdm=False)
    answers = engine.run(answer_all())
    assert [output.completions for output in answers] == [output.completions for output in expected]
    assert tokens(answers[1]) == [TARGET] * TOKENS
    assert tokens(answers[3]) == [OTHER_TARGET] * TOKENS


def test_parameters_may_be_left_out(engine: Engine) -> None:
    async def begin() -> RequestOutput:
        outputs = engine.llm.generate("Hello")
        first = await anext(outputs)
        await outputs.aclose()
        return first

    assert len(tokens(engine.run(begin()))) >= 1


def test_a_request_id_comes_back(engine: Engine) -> None:
    async def ids() -> set[str]:
        return {output.request_id async for output in engine.llm.generate("Hi", PLAIN, request_id="mine")}

    assert engine.run(ids()) == {"mine"}
    # It is free again.
    assert engine.run(ids()) == {"mine"}


@pytest.mark.parametrize("form", ["prompt", "prompt_token_ids"])
def test_a_prompt_may_be_a_dict(engine: Engine, form: str) -> None:
    plain = engine.run(answer(engine.llm, "Hello"))
    output = engine.run(answer(engine.llm, {form: "Hello" if form == "prompt" else plain.prompt_token_ids}))
    assert output.prompt_token_ids == plain.prompt_token_ids
    assert tokens(output) == tokens(plain)
    with pytest.raises(InvalidRequestError, match=r"prompt\.text: is no part of a prompt"):
        engine.run(answer(engine.llm, {"text": "Hi"}))


def test_a_prompt_is_cut_offline_as_over_http(engine: Engine, llm: LLM) -> None:
    prompt, last, filling = list(range(3, 40)), {"truncate_prompt_tokens": 4}, {"truncate_prompt_tokens": -1}
    first = last | {"truncation_side": "right"}

    async def asked(kwargs: Mapping[str, Any]) -> list[int]:
        outputs = [output async for output in engine.llm.generate(prompt, PLAIN, tokenization_kwargs=kwargs)]
        return outputs[-1].prompt_token_ids

    for kwargs, kept in ((last, prompt[-4:]), (first, prompt[:4]), (filling, prompt)):
        assert engine.run(asked(kwargs)) == kept
        (output,) = llm.generate(prompt, PLAIN, use_tqdm=False, tokenization_kwargs=kwargs)
        assert output.prompt_token_ids == kept
    context = llm._engine.fd_config.model_config.max_model_len
    longer = prompt * (context // len(prompt) + 1)
    (output,) = llm.generate(longer, PLAIN, use_tqdm=False, tokenization_kwargs=filling)
    assert output.prompt_token_ids == longer[TOKENS - context :]
    (chat,) = llm.chat(HELLO, PLAIN, use_tqdm=False)
    (cut,) = llm.chat(HELLO, PLAIN, use_tqdm=False, tokenization_kwargs=last)
    assert cut.prompt_token_ids == chat.prompt_token_ids[-4:]


def test_an_unknown_tokenization_keyword_is_refused(engine: Engine, llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"tokenization_kwargs\.max_length: is unknown"):
        llm.generate("the dog", PLAIN, tokenization_kwargs={"max_length": 4})
    with pytest.raises(ValueError, match="truncate_prompt_tokens: must be at least 1"):
        engine.run(anext(engine.llm.chat(HELLO, PLAIN, tokenization_kwargs={"truncate_prompt_tokens": 0})))


def test_a_chat_takes_what_templates_take(engine: Engine) -> None:
    async def prompt() -> str | None:
        template = "{{ greeting }} {{ messages[0].content }}"
        options = {"chat_template": template, "chat_template_kwargs": {"greeting": "Ho"}}
        return [output.prompt async for output in engine.llm.chat(HELLO, PLAIN, "mine", **options)][-1]

    assert engine.run(prompt()) == "Ho Hello!"


def test_every_kind_of_output_tells_the_same(engine: Engine) -> None:
    fields: dict[str, Any] = {"n": 2, "seed": 3, "max_tokens": 100, "ignore_eos": True, "logprobs": 1}

    async def outputs(kind: RequestOutputKind) -> list[RequestOutput]:
        params = SamplingParams(**fields, output_kind=kind)
        return [output async for output in engine.llm.generate("Once upon", params, request_id="mine")]

    cumulative, deltas, final = (engine.run(outputs(kind)) for kind in RequestOutputKind)
    assert len(final) == 1
    assert cumulative[-1].completions == final[0].completions
    assert len(deltas) > 3
    for whole in final[0].completions:
        parts = [part for output in deltas for part in output.completions if part.index == whole.index]
        assert "".join(part.text for part in parts) == whole.text
        assert [token for part in parts for token in part.token_ids] == whole.token_ids
        assert [entry for part in parts for entry in part.logprobs or []] == whole.logprobs
    assert {output.request_id for output in (*cumulative, *deltas, *final)} == {"mine"}
    assert [output.finished for output in deltas] == [False] * (len(deltas) - 1) + [True]


# Refusals


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", PLAIN, "prompt"),
        ([], PLAIN, "prompt"),
        ([1, VOCAB_SIZE], PLAIN, "prompt.1"),
        ("Hi", SamplingParams(max_tokens=10**6), "max_tokens"),
        ("Hi", SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias.{VOCAB_SIZE}"),
        ("Hi", SamplingParams(logits_processors={"nope": {}}), "logits_processors.nope"),
        ("Hi", SamplingParams(logits_processors={"DummyLogitsProcessor": {"target_token": "x"}}), None),
    ],
)
def test_a_request_that_cannot_be_served_raises_its_path(
    engine: Engine, prompt: Prompt, params: SamplingParams, param: str | None
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        engine.run(answer(engine.llm, prompt, params))
    assert caught.value.param == (param or "logits_processors.DummyLogitsProcessor")


def test_a_request_id_that_is_running_is_refused(engine: Engine) -> None:
    async def twice() -> None:
        first = engine.llm.generate("Hi", ENDLESS, request_id="same")
        await anext(first)
        try:
            with pytest.raises(InvalidRequestError, match="'same' is running already"):
                await anext(engine.llm.generate("Hi", PLAIN, request_id="same"))
            # The first one did not notice.
            assert not (await anext(first)).finished
        finally:
            await first.aclose()

    engine.run(twice())


def test_of_two_requests_that_come_at_once_with_one_id_the_second_is_refused(engine: Engine) -> None:
    """The first is still being admitted: its grammar is compiled."""

    async def ask() -> RequestOutput:
        params = SamplingParams(max_tokens=4, guided_decoding=GuidedDecodingParams(regex="[abc]{4,9}"))
        outputs = [output async for output in engine.llm.generate("Hi", params, request_id="same")]
        return outputs[-1]

    async def both() -> list[RequestOutput | BaseException]:
        return await asyncio.gather(ask(), ask(), return_exceptions=True)

    first, second = engine.run(both())
    assert isinstance(first, RequestOutput)
    assert first.finished
    assert isinstance(second, InvalidRequestError)
    assert second.param == "request_id"


# Aborts


def test_a_request_is_aborted_while_it_is_admitted(engine: Engine) -> None:
    async def abort() -> RequestOutput:
        params = SamplingParams(max_tokens=1000, guided_decoding=GuidedDecodingParams(regex="[abcd]{900,1000}"))
        outputs = engine.llm.generate("Hi", params, request_id="early")
        first = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)
        engine.llm.abort("early")
        output = await first
        await outputs.aclose()
        return output

    output = engine.run(abort())
    assert (output.finished, output.outputs.finish_reason, tokens(output)) == (True, "abort", [])


def test_leaving_the_iteration_early_aborts_the_request(engine: Engine) -> None:
    async def leave() -> None:
        outputs = engine.llm.generate("Hello", ENDLESS)
        async for output in outputs:
            if len(tokens(output)) >= 2:
                break
        await outputs.aclose()
        await none_running(engine.llm)

    engine.run(leave())


def test_cancelling_the_task_aborts_the_request(engine: Engine) -> None:
    async def cancel() -> None:
        started = asyncio.Event()

        async def read() -> None:
            async for _ in engine.llm.generate("Hello", ENDLESS):
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await none_running(engine.llm)

    engine.run(cancel())


def test_abort_ends_the_iteration_with_the_reason_abort(engine: Engine) -> None:
    async def abort() -> RequestOutput:
        last = None
        async for output in engine.llm.generate("Hello", ENDLESS, request_id="long"):
            last = output
            if len(tokens(output)) >= 2:
                engine.llm.abort("long")
        assert last is not None
        await none_running(engine.llm)
        return last

    output = engine.run(abort())
    assert output.finished
    assert output.outputs.finish_reason == "abort"
    assert 2 <= len(tokens(output)) < LONG_CONTEXT // 2


def test_abort_ends_all_of_n_completions(engine: Engine) -> None:
    params = SamplingParams(n=3, temperature=1, max_tokens=LONG_CONTEXT - 500, ignore_eos=True)

    async def abort() -> list[str | None]:
        reasons: list[str | None] = []
        async for output in engine.llm.generate("Hello", params, request_id="three"):
            engine.llm.abort("three")
            reasons = [completion.finish_reason for completion in output.completions]
        await none_running(engine.llm)
        return reasons

    assert engine.run(abort()) == ["abort"] * 3


def test_abort_leaves_other_requests_alone(engine: Engine, cases: list[Case]) -> None:
    case = cases[1]

    async def abort() -> list[int]:
        other = asyncio.create_task(answer(engine.llm, case["prompt_ids"], REFERENCE))
        async for _ in engine.llm.generate("Hello", ENDLESS, request_id="long"):
            engine.llm.abort("long")
        return tokens(await other)

    assert engine.run(abort()) == case["greedy_ids"]


def test_abort_of_a_request_that_does_not_run_does_nothing(engine: Engine) -> None:
    engine.llm.abort("nobody")
    assert len(tokens(engine.run(answer(engine.llm, "Hello")))) == TOKENS


# Logits processors


def test_async_llm_tells_of_its_processors(engine: Engine) -> None:
    engine.run(answer(engine.llm, "Hi", SamplingParams(max_tokens=1, logit_bias={OTHER_TARGET: 1.0})))
    infos = engine.llm.logits_processors
    assert [(info.order, info.name, info.source) for info in infos] == [
        (0, "LogitBiasLogitsProcessor", "builtin"),
        (1, "DummyLogitsProcessor", "object"),
    ]
    assert infos[0].stats.requests >= 1


def test_async_llm_resets_only_what_is_declared(engine: Engine) -> None:
    engine.run(engine.llm.reset_logits_processor("DummyLogitsProcessor"))
    with pytest.raises(KeyError):
        engine.run(engine.llm.reset_logits_processor("nope"))


def test_llm_tells_of_its_processors(llm: LLM) -> None:
    before = llm.logits_processors[0].stats.rows
    params = SamplingParams(temperature=0, max_tokens=TOKENS, logit_bias={OTHER_TARGET: 100.0})
    llm.generate("Hello!", params, use_tqdm=False)
    bias, dummy, boom = llm.logits_processors
    assert [(info.order, info.dialect, info.source) for info in (bias, dummy, boom)] == [
        (0, "native", "builtin"),
        (1, "vllm-v1", "object"),
        (2, "native", "object"),
    ]
    assert bias.parameters is not None
    assert "logit_bias" in bias.parameters["properties"]
    assert dummy.parameters is None
    assert (bias.argmax_invariant, bias.stats.state) == (False, "ok")
    assert bias.stats.rows == before + TOKENS


def test_llm_resets_a_processor_out_of_quarantine(llm: LLM) -> None:
    asking = SamplingParams(temperature=0, max_tokens=TOKENS, logits_processors_args={"boom": 0})

    def state() -> str:
        return llm.logits_processors[2].stats.state

    for _ in range(MAX_FAULTS):
        assert state() == "ok"
        with pytest.raises(RequestFailedError, match="RaisesOnBoom"):
            llm.chat(HELLO, asking, use_tqdm=False)
    assert state() == "quarantined"
    with pytest.raises(ProcessorUnavailableError, match="RaisesOnBoom"):
        llm.chat(HELLO, asking, use_tqdm=False)
    (output,) = llm.chat(HELLO, PLAIN, use_tqdm=False)
    assert output.finished
    llm.reset_logits_processor("RaisesOnBoom")
    assert state() == "ok"
    with pytest.raises(RequestFailedError) as caught:
        llm.chat(HELLO, asking, use_tqdm=False)
    assert not isinstance(caught.value, ProcessorUnavailableError)
    llm.reset_logits_processor("RaisesOnBoom")


def test_llm_does_not_reset_what_is_not_declared(llm: LLM) -> None:
    with pytest.raises(KeyError):
        llm.reset_logits_processor("nope")
