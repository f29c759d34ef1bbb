"""The examples of the documents on vLLM's logits processors run as printed, and do what the documents say.

Imports are renamed, and torch is Paddle, except where a server is started with `--vllm-compat`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.chat import MODEL, REQUEST_SECONDS, decode, post
from support.documents import DummyLogitsProcessor, WrappedPerReqLogitsProcessor
from support.server import ServerProcess, server_environment

from fastdeploy_lp import LLM, SamplingParams

TARGET = 67
TOKENS = 6
SLOTS = 8
PLAIN = {"temperature": 0, "max_tokens": TOKENS}

# What the light model makes of "Hello!" first: tokens by their logits there, of which the highest is 8.8.
HELLO = "Hello!"
GREEDY_TOKEN = 32991
POSITIVE_TOKEN = 1000  # 1.2
OTHER_TOKEN = 67  # 2.4
NEGATIVE_TOKEN = 14423  # -4.3
SLOT_PROMPTS = ["the dog", "the fox", "a cat", "over the"]
SLOT_TARGETS = (128, 67)
NAMED = ("--served-model-name", MODEL)

Case = dict[str, Any]
Ask = Callable[[ServerProcess, list[dict[str, Any]], "dict[str, Any] | None"], str]


@pytest.fixture(scope="module")
def server(light_server: ServerProcess) -> ServerProcess:
    """No test here needs sense."""
    return light_server


@pytest.fixture(scope="module")
def paddle_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """A plugin dict and a vLLM V1 class as entry points, and classes named by their paths, one of them wrapped."""
    names = ["DummyLogitsProcessor", "ThresholdLogitsProcessor", "WrappedPerReqLogitsProcessor"]
    classes = [f"support.documents:{name}" for name in names]
    plugins = {"FASTDEPLOY_LP_PLUGINS": "example_plugin,my_decoder"}
    with ServerProcess("--logits-processors", *classes, *NAMED, model=str(light_checkpoint), env=plugins) as running:
        yield running


@pytest.fixture(scope="module")
def torch_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """The printed torch classes, which import from `vllm`, and the variable that one of them reads.

    With the example of vLLM's guide to its slot-keyed interface. Started by the names that vLLM's documents use:
    underscores in options, and a module `api_server`.
    """
    names = ["DummyLogitsProcessor", "WrappedPerReqLogitsProcessor", "MyLogitsProcessor"]
    classes = [*(f"support.documents_torch:{name}" for name in names), "support.slot_keyed_torch:TargetToken"]
    options = ["--vllm_compat", "--logits_processors", *classes, *NAMED, "--max-num-seqs", str(SLOTS)]
    variables = {"MY_PROCESSOR_PARAM": "2.0"}
    with ServerProcess(*options, model=str(light_checkpoint), module="api_server", env=variables) as running:
        yield running


@pytest.fixture(scope="module")
def llm(light_checkpoint: Path) -> Iterator[LLM]:
    """Given class objects, as the document's third way to load them."""
    with LLM(str(light_checkpoint), logits_processors=[DummyLogitsProcessor, WrappedPerReqLogitsProcessor]) as running:
        yield running


@pytest.fixture(scope="module")
def cases(golden_cases: list[Case], server: ServerProcess) -> list[Case]:
    """Conversations, and the tokens that answer them without processors."""

    def plain(messages: Any) -> list[int]:
        answer = post(server, {"messages": messages, **PLAIN, "return_token_ids": True})
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens

    return [{"messages": case["messages"], "plain": plain(case["messages"])} for case in golden_cases]


def complete(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": HELLO, "temperature": 0, "max_tokens": 1, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=REQUEST_SECONDS)


def completed(server: ServerProcess, **fields: Any) -> str:
    answer = complete(server, **fields)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def refused(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def names_of(server: ServerProcess) -> list[str]:
    answer = httpx.get(f"{server.url}/v1/logits_processors").json()
    return [card["name"] for card in answer["data"]]


# Plugins chosen by name: {"logits_processors": {"example_plugin": {"token_id": N}}}


def plugin_curl(server: ServerProcess, parameters: dict[str, Any]) -> dict[str, Any]:
    """The document's command line, with the server's address, a model and the parameters put in."""
    command = f"""curl {server.url}/v1/completions \\
        -H "Content-Type: application/json" \\
        -d '{{
            "model": "{MODEL}",
            "prompt": "Hello!",
            "max_tokens": 1,
            "temperature": 0,
            "logits_processors": {{
              "example_plugin": {json.dumps(parameters)}
            }}
        }}'"""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=REQUEST_SECONDS, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_plugin_multiplies_the_chosen_tokens_logit(paddle_server: ServerProcess) -> None:
    """A hundred times a positive logit is the highest one."""
    answer = plugin_curl(paddle_server, {"token_id": POSITIVE_TOKEN})
    assert answer["choices"][0]["text"] == decode(POSITIVE_TOKEN)
    assert answer["usage"]["completion_tokens"] == 1


def test_the_plugin_leaves_the_greedy_answer_when_the_token_can_not_win(paddle_server: ServerProcess) -> None:
    """A hundred times a negative logit is lower still."""
    answer = plugin_curl(paddle_server, {"token_id": NEGATIVE_TOKEN})
    assert answer["choices"][0]["text"] == decode(GREEDY_TOKEN)


def test_without_the_field_the_plugin_does_nothing(paddle_server: ServerProcess, server: ServerProcess) -> None:
    plain = completed(paddle_server, max_tokens=TOKENS)
    assert plain == completed(server, max_tokens=TOKENS)
    assert plain.startswith(decode(GREEDY_TOKEN))


def test_every_request_has_a_plugin_instance_of_its_own(paddle_server: ServerProcess) -> None:
    tokens = [POSITIVE_TOKEN, NEGATIVE_TOKEN, None, OTHER_TOKEN] * 2
    chosen = [{} if t is None else {"logits_processors": {"example_plugin": {"token_id": t}}} for t in tokens]
    with ThreadPoolExecutor(len(tokens)) as pool:
        texts = list(pool.map(lambda fields: completed(paddle_server, **fields), chosen))
    assert texts == [decode(t) for t in (POSITIVE_TOKEN, GREEDY_TOKEN, GREEDY_TOKEN, OTHER_TOKEN) * 2]


@pytest.mark.parametrize(
    ("chosen", "param"),
    [
        ({"example_plugin": {"token_id": "many"}}, "logits_processors.example_plugin.token_id"),
        ({"example_plugin": {"token_id": None}}, "logits_processors.example_plugin.token_id"),
        ({"example_plugin": {}}, "logits_processors.example_plugin.token_id"),
        ({"example_plugin": {"token_id": 1, "nope": 2}}, "logits_processors.example_plugin.nope"),
        ({"example_plugin": 5}, "logits_processors.example_plugin"),
        ({"example_plugins": {"token_id": 1}}, "logits_processors.example_plugins"),
        ([{"name": "example_plugin", "params": {"token_id": "many"}}], "logits_processors.0.params.token_id"),
        ([{"name": "example_plugin"}], "logits_processors.0.params.token_id"),
    ],
)
def test_wrong_parameters_of_a_plugin_are_refused_with_their_path(
    paddle_server: ServerProcess, chosen: Any, param: str
) -> None:
    error = refused(complete(paddle_server, logits_processors=chosen))
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_a_token_that_does_not_exist_refuses_the_request_with_the_plugins_name(paddle_server: ServerProcess) -> None:
    """The plugin's parameters know nothing of the vocabulary, but a call of it does."""
    answer = complete(paddle_server, logits_processors={"example_plugin": {"token_id": 10**6}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logits_processors.example_plugin"
    assert completed(paddle_server) == decode(GREEDY_TOKEN)


# vLLM's interface: {"vllm_xargs": {"target_token": N}}, in the documents' four ways


def ask_rest(server: ServerProcess, messages: list[dict[str, Any]], xargs: dict[str, Any] | None) -> str:
    body = {"model": MODEL, "messages": messages, **PLAIN} | ({"vllm_xargs": xargs} if xargs else {})
    answer = post(server, body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def ask_sdk(server: ServerProcess, messages: list[dict[str, Any]], xargs: dict[str, Any] | None) -> str:
    extra = {"extra_body": {"vllm_xargs": xargs}} if xargs else {}
    with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL, messages=messages, **PLAIN, **extra)  # type: ignore[call-overload]
    text: str = answer.choices[0].message.content
    return text


def alternating(cases: list[Case], argument: str) -> list[tuple[list[dict[str, Any]], dict[str, Any] | None]]:
    """Every second conversation carries the argument."""
    return [(case["messages"], {argument: TARGET + index} if index % 2 else None) for index, case in enumerate(cases)]


def expected_tokens(cases: list[Case]) -> list[list[int]]:
    """What those are answered with: nothing but the target, or what is answered without processors."""
    return [[TARGET + i] * TOKENS if i % 2 else case["plain"] for i, case in enumerate(cases)]


def check_in_one_batch(server: ServerProcess, cases: list[Case], ask: Ask, argument: str) -> None:
    with ThreadPoolExecutor(len(cases)) as pool:
        texts = list(pool.map(lambda request: ask(server, *request), alternating(cases, argument)))
    assert texts == [decode(*tokens) for tokens in expected_tokens(cases)]


LOADED = [("paddle_server", "target_token"), ("paddle_server", "decoder_token"), ("torch_server", "target_token")]


@pytest.mark.parametrize("ask", [ask_rest, ask_sdk])
@pytest.mark.parametrize(("fixture", "argument"), LOADED)
def test_only_requests_with_the_argument_get_nothing_but_the_target(
    fixture: str, argument: str, ask: Ask, cases: list[Case], request: pytest.FixtureRequest
) -> None:
    check_in_one_batch(request.getfixturevalue(fixture), cases, ask, argument)


@pytest.mark.parametrize("name", ["DummyLogitsProcessor", "WrappedPerReqLogitsProcessor"])
@pytest.mark.parametrize("fixture", ["paddle_server", "torch_server"])
def test_each_printed_class_works_alone(fixture: str, name: str, request: pytest.FixtureRequest) -> None:
    named = {name: {"target_token": TARGET}}
    text = completed(request.getfixturevalue(fixture), logits_processors=named, max_tokens=TOKENS)
    assert text == decode(*[TARGET] * TOKENS)


def test_offline_the_argument_is_in_extra_args(llm: LLM, cases: list[Case]) -> None:
    conversations, extra = zip(*alternating(cases, "target_token"), strict=True)
    params = [SamplingParams(**PLAIN, extra_args=args) for args in extra]
    outputs = llm.chat(list(conversations), params, use_tqdm=False)
    assert [output.outputs.token_ids for output in outputs] == expected_tokens(cases)


@pytest.mark.parametrize("name", ["DummyLogitsProcessor", "WrappedPerReqLogitsProcessor"])
def test_each_class_object_works_alone(llm: LLM, name: str) -> None:
    params = SamplingParams(**PLAIN, logits_processors={name: {"target_token": TARGET}})
    (output,) = llm.generate(HELLO, params, use_tqdm=False)
    assert output.outputs.token_ids == [TARGET] * TOKENS


def test_a_target_token_of_the_wrong_type_is_refused_by_validate_params(paddle_server: ServerProcess) -> None:
    with (
        openai.Client(base_url=f"{paddle_server.url}/v1", api_key="EMPTY", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="target_token value many is not int") as caught,
    ):
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": HELLO}],
            extra_body={"vllm_xargs": {"target_token": "many"}},
        )
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "invalid_request_error"


def test_a_wrapped_processor_that_returns_none_leaves_the_request_alone(
    paddle_server: ServerProcess, server: ServerProcess
) -> None:
    """The document's adapter only warns of a target that is no number."""
    named = {"WrappedPerReqLogitsProcessor": {"target_token": "many"}}
    plain = completed(server, max_tokens=TOKENS)
    assert completed(paddle_server, logits_processors=named, max_tokens=TOKENS) == plain
    assert "target_token value many is not int" in paddle_server.log


def test_entry_points_load_by_themselves_before_the_declared_ones(
    paddle_server: ServerProcess, server: ServerProcess
) -> None:
    loaded, declared = ["example_plugin", "my_decoder"], ["Dummy", "Threshold", "WrappedPerReq"]
    assert names_of(paddle_server) == [*loaded, *(f"{name}LogitsProcessor" for name in declared)]
    assert names_of(server) == ["LogitBiasLogitsProcessor", "YourLogitsProcessor"]


# vLLM's slot-keyed interface, as vLLM's online test of it is described


def test_requests_with_the_argument_repeat_its_token_and_the_others_do_not_notice(torch_server: ServerProcess) -> None:
    """More requests than slots, in which processors of other interfaces take no part."""

    def answer(index: int, target: int | None) -> str:
        named = {"TargetToken": {"target_token": target}} if target is not None else {}
        prompt = SLOT_PROMPTS[index % len(SLOT_PROMPTS)]
        return completed(torch_server, prompt=prompt, logits_processors=named, max_tokens=20, ignore_eos=True)

    plain = [answer(index, None) for index in range(len(SLOT_PROMPTS))]
    targets = [SLOT_TARGETS[index % 2] if index % 3 else None for index in range(SLOTS + 4)]
    with ThreadPoolExecutor(len(targets)) as threads:
        found = list(threads.map(answer, range(len(targets)), targets))
    assert found == [
        plain[index % len(plain)] if target is None else decode(*[target] * 20) for index, target in enumerate(targets)
    ]


def test_a_slot_keyed_processor_is_listed_and_sees_extra_args(torch_server: ServerProcess) -> None:
    def card() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{torch_server.url}/v1/logits_processors").json()["data"][-1]
        return found

    before = card()
    assert (before["name"], before["dialect"]) == ("TargetToken", "torch")
    assert completed(torch_server, vllm_xargs={"target_token": TARGET}) == decode(TARGET)
    assert card()["counters"]["requests"] == before["counters"]["requests"] + 1


def test_an_argument_that_it_refuses_is_a_400_with_its_words(torch_server: ServerProcess) -> None:
    answer = complete(torch_server, logits_processors={"TargetToken": {"target_token": "many"}})
    assert "target_token value many is not int" in refused(answer)["message"]


# The plugin guide


def sampled(server: ServerProcess, temperature: float, **fields: Any) -> str:
    return completed(server, temperature=temperature, seed=11, max_tokens=16, **fields)


def test_the_worker_sees_the_servers_environment(torch_server: ServerProcess, server: ServerProcess) -> None:
    """Logits divided by 2 are those of twice the temperature."""
    assert sampled(torch_server, 0.8) == sampled(server, 1.6)
    assert sampled(torch_server, 0.8) != sampled(server, 0.8)


def test_a_request_that_names_no_processor_is_left_alone_by_a_global_one(
    torch_server: ServerProcess, server: ServerProcess
) -> None:
    """Only the named processors see the request."""
    assert sampled(torch_server, 0.8, logits_processors={}) == sampled(server, 0.8)
    named = {"MyLogitsProcessor": {}}
    assert sampled(torch_server, 0.8, logits_processors=named) == sampled(server, 1.6)


def test_state_of_a_request_comes_from_its_extra_args(paddle_server: ServerProcess, server: ServerProcess) -> None:
    """At a threshold of 1 only the most likely token is left, at 0 every one, whatever a neighbour asks for."""
    thresholds = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    with ThreadPoolExecutor(len(thresholds)) as pool:
        chosen = [{"vllm_xargs": {"my_threshold": threshold}} for threshold in thresholds]
        texts = list(pool.map(lambda fields: sampled(paddle_server, 1.0, **fields), chosen))
    greedy, drawn = completed(server, max_tokens=16), sampled(server, 1.0)
    assert greedy != drawn
    assert texts == [greedy if threshold else drawn for threshold in thresholds]


def test_python_finds_the_installed_entry_points() -> None:
    program = (
        "from importlib.metadata import entry_points; "
        "print(list(entry_points(group='fastdeploy_lp.logits_processors')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=server_environment()
    )
    assert "name='example_plugin'" in done.stdout
    assert "name='my_decoder', value='my_decoder.processor:TargetTokenProcessor'" in done.stdout
