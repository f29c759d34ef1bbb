"""The examples of FastDeploy's document on logits processors run as printed, and do what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from support.chat import GREEDY, decode, post
from support.processors import FORCED_TOKEN
from support.server import ServerProcess, free_port

BANNED, FORCING = -100.0, 100.0
ENABLED = {"enable_your_logits_processor": True}

Case = dict[str, Any]


@pytest.fixture(scope="module")
def documented(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """Started with every option of the document; the context is small because its requests have no `max_tokens`."""
    ports = ["--engine-worker-queue-port", str(free_port()), "--cache-queue-port", str(free_port())]
    printed = "support.documents_fastdeploy:YourLogitsProcessor"
    processors = ["--fastdeploy-compat", "--logits-processors", "LogitBiasLogitsProcessor", printed]
    with ServerProcess(*ports, *processors, "--max-model-len", "96", model=str(light_checkpoint)) as running:
        yield running


@pytest.fixture
def document_client(documented: ServerProcess) -> Iterator[openai.Client]:
    """As the document makes it, which connects to 0.0.0.0."""
    with openai.Client(base_url=f"http://0.0.0.0:{documented.port}/v1", api_key="EMPTY_API_KEY") as client:
        yield client


def curl(server: ServerProcess, arguments: str) -> subprocess.CompletedProcess[str]:
    """The document's command line in a shell, the arguments put in."""
    url = f"http://0.0.0.0:{server.port}/v1/chat/completions"
    command = f"""curl -X POST "{url}" -H "Content-Type: application/json" -d '{{
      "messages": [{{"role":"user", "content":"Who is Lu Xun?"}}],
      "logits_processors_args": {{
        {arguments}
      }}
    }}'"""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=True)


def test_curl_with_a_logit_bias(documented: ServerProcess) -> None:
    done = curl(documented, '"logit_bias": {"128": 5.0, "28": -10.0}')
    answer = ChatCompletion.model_validate_json(done.stdout)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content


def test_curl_with_your_processor(documented: ServerProcess) -> None:
    done = curl(documented, '"enable_your_logits_processor": true')
    answer = ChatCompletion.model_validate_json(done.stdout)
    assert answer.usage is not None
    assert answer.choices[0].message.content == decode(*[FORCED_TOKEN] * answer.usage.completion_tokens)


def test_sdk_with_a_logit_bias(document_client: openai.Client) -> None:
    response = document_client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Who is Lu Xun?"}],
        extra_body={"logits_processors_args": {"logit_bias": {"128": 5.0, "28": -10.0}}},
    )
    assert response.choices[0].message.content


def test_sdk_with_your_processor(document_client: openai.Client) -> None:
    response = document_client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Who is Lu Xun?"}],
        extra_body={"logits_processors_args": {"enable_your_logits_processor": True}},
    )
    text = response.choices[0].message.content
    assert response.usage is not None
    assert text == decode(*[FORCED_TOKEN] * response.usage.completion_tokens)
    assert response.choices[0].finish_reason == "length"


def answers(server: ServerProcess, bodies: list[dict[str, Any]]) -> list[str]:
    """The texts of bodies that run together, in order."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        responses = list(pool.map(lambda body: post(server, body), bodies))
    return [response.raise_for_status().json()["choices"][0]["message"]["content"] for response in responses]


def body(case: Case, processors_args: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A greedy request for a case, with arguments if there are any."""
    given = {} if processors_args is None else {"logits_processors_args": processors_args}
    return {"messages": case["messages"], **GREEDY, **given, **fields}


def bias(entries: dict[int, float]) -> dict[str, Any]:
    """Arguments as JSON has them."""
    return {"logit_bias": {str(token): value for token, value in entries.items()}}


def test_high_bias_forces_its_token(server: ServerProcess, golden_cases: list[Case]) -> None:
    bodies = [body(case, bias({900 + i: FORCING}), max_tokens=4) for i, case in enumerate(golden_cases)]
    assert answers(server, bodies) == [decode(*[900 + i] * 4) for i in range(len(golden_cases))]


def test_low_bias_bans_the_greedy_token(server: ServerProcess, golden_cases: list[Case]) -> None:
    bodies = [body(case, bias({case["output_ids"][0]: BANNED}), max_tokens=1) for case in golden_cases]
    second = [decode(case["top5"][0][1][0]) for case in golden_cases]
    assert answers(server, bodies) == second


@pytest.mark.parametrize(("margin", "winner"), [(-0.02, 0), (0.02, 1)])
def test_bias_is_added_to_the_logit(
    server: ServerProcess, golden_cases: list[Case], margin: float, winner: int
) -> None:
    """A bias as large as a token's lag behind the greedy one is where the choice turns."""
    firsts = [case["top5"][0] for case in golden_cases]
    lags = [(first[1][0], first[0][2] - first[1][2]) for first in firsts]
    bodies = [
        body(case, bias({token: lag + margin}), max_tokens=1)
        for case, (token, lag) in zip(golden_cases, lags, strict=True)
    ]
    assert answers(server, bodies) == [decode(first[winner][0]) for first in firsts]


def test_infinite_ban_is_accepted(server: ServerProcess, golden_cases: list[Case]) -> None:
    case = golden_cases[0]
    request = body(case, bias({case["output_ids"][0]: float("-inf")}), max_tokens=1)
    assert answers(server, [request]) == [decode(case["top5"][0][1][0])]


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.5}, {"top_k": 50}])
def test_enormous_bias_is_refused_or_forces_its_token(server: ServerProcess, sampling: dict[str, Any]) -> None:
    """It is more than a float32 holds, and must not turn the row's probabilities into nothing."""
    messages = [{"role": "user", "content": "Who is Lu Xun?"}]
    request = {"messages": messages, "max_tokens": 3, "logits_processors_args": bias({345: 1e300}), **sampling}
    answer = post(server, request)
    if answer.status_code != 400:
        assert answer.json()["choices"][0]["message"]["content"] == decode(345, 345, 345)
    else:
        assert answer.json()["error"]["param"] == "logits_processors_args.logit_bias.345"


def batch(server: ServerProcess, cases: list[Case], processors_args: dict[str, Any] | None, **fields: Any) -> list[str]:
    """All cases together, every second one with these arguments and the others without any."""
    fields = {"max_tokens": 8, **fields}
    return answers(server, [body(case, processors_args if i % 2 else None, **fields) for i, case in enumerate(cases)])


def test_request_without_arguments_does_not_feel_its_neighbours(
    server: ServerProcess, golden_cases: list[Case]
) -> None:
    golden = [decode(*case["output_ids"][:8]) for case in golden_cases]
    assert batch(server, golden_cases, None) == golden
    for neighbours_args in (bias({28: 3.0, 260: BANNED, 504: BANNED}), ENABLED):
        among = batch(server, golden_cases, neighbours_args)
        assert among[::2] == golden[::2]
        assert among[1::2] != golden[1::2]


def test_sampled_request_without_arguments_does_not_feel_its_neighbours(
    server: ServerProcess, golden_cases: list[Case]
) -> None:
    sampled = {"temperature": 1.0, "top_p": 0.95, "seed": 3}
    without = batch(server, golden_cases, None, **sampled)
    among = batch(server, golden_cases, bias({28: 5.0}) | ENABLED, **sampled)
    assert among[::2] == without[::2]
    assert among[1::2] != without[1::2]


@pytest.mark.parametrize("off", [None, {}, {"enable_your_logits_processor": False}, {"logit_bias": {}}])
def test_processor_that_is_not_enabled_does_nothing(
    server: ServerProcess, golden_cases: list[Case], off: dict[str, Any] | None
) -> None:
    assert answers(server, [body(golden_cases[0], off)]) == [golden_cases[0]["output_text"]]


def test_your_processor_forces_its_token_where_it_is_enabled(server: ServerProcess, golden_cases: list[Case]) -> None:
    bodies = [body(case, ENABLED if i % 2 else None, max_tokens=8) for i, case in enumerate(golden_cases)]
    together = answers(server, bodies)
    assert together[1::2] == [decode(*[FORCED_TOKEN] * 8)] * len(together[1::2])
    assert together[::2] == [decode(*case["output_ids"][:8]) for case in golden_cases[::2]]


def test_both_processors_work_on_one_request(server: ServerProcess, golden_cases: list[Case]) -> None:
    """The forced token stands at 0 and all others at -100: the bias went before it and changes nothing."""
    request = body(golden_cases[0], bias({900: FORCING}) | ENABLED, max_tokens=3)
    assert answers(server, [request]) == [decode(*[FORCED_TOKEN] * 3)]
