"""Completions that begin with their prompt, and the best of several."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from support.chat import MODEL, REQUEST_SECONDS, encode
from support.server import ServerProcess

PROMPT = "The capital of France is"
OTHER = "Naïve 🙂 façade:"
GREEDY = {"temperature": 0, "max_tokens": 4}


@pytest.fixture(scope="module")
def server(light_server: ServerProcess) -> ServerProcess:
    """No test here needs sense."""
    return light_server


def complete(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"prompt": PROMPT, **GREEDY, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=REQUEST_SECONDS)


def answered(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = complete(server, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    *events, done = complete(server, stream=True, **fields).text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(parts: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """What each choice of a stream became."""
    choices: list[dict[str, Any]] = [{"text": "", "finish_reason": None, "logprobs": None} for _ in range(count)]
    for part in (each for event in parts for each in event["choices"]):
        choice = choices[part["index"]]
        choice["text"] += part["text"]
        choice["finish_reason"] = choice["finish_reason"] or part["finish_reason"]
        if part["logprobs"] is not None:
            before = choice["logprobs"] or {name: [] for name in part["logprobs"]}
            choice["logprobs"] = {name: before[name] + gained for name, gained in part["logprobs"].items()}
    return choices


def test_the_prompt_stands_before_each_choice(server: ServerProcess) -> None:
    prompts = [PROMPT, OTHER]
    plain = answered(server, prompt=prompts, n=2, seed=1, temperature=1)["choices"]
    echoed = answered(server, prompt=prompts, n=2, seed=1, temperature=1, echo=True)["choices"]
    expected = [prompts[place // 2] + choice["text"] for place, choice in enumerate(plain)]
    assert [choice["text"] for choice in echoed] == expected
    assert [
        each["text"] for each in joined(streamed(server, prompt=prompts, n=2, seed=1, temperature=1, echo=True), 4)
    ] == expected


def test_token_ids_are_echoed_as_what_they_read_as(server: ServerProcess) -> None:
    (choice,) = answered(server, prompt=encode(PROMPT), echo=True)["choices"]
    (own,) = answered(server)["choices"]
    assert choice["text"] == PROMPT + own["text"]


@pytest.mark.parametrize("prompt", [PROMPT, OTHER])
@pytest.mark.parametrize("count", [0, 2])
def test_logprobs_are_those_of_prompt_and_completion(server: ServerProcess, prompt: str, count: int) -> None:
    body = {"prompt": prompt, "logprobs": count}
    (echoed,) = answered(server, **body, echo=True)["choices"]
    (own,) = answered(server, **body, prompt_logprobs=count)["choices"]
    logprobs, size = echoed["logprobs"], len(encode(prompt))
    assert {len(entries) for entries in logprobs.values()} == {size + 4}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    known = [next(iter(each.values()))["logprob"] for each in own["prompt_logprobs"][1:]]
    assert logprobs["token_logprobs"][1:] == known + own["logprobs"]["token_logprobs"]
    assert logprobs["top_logprobs"][size:] == own["logprobs"]["top_logprobs"]
    assert all(count <= len(each) <= count + 1 for each in logprobs["top_logprobs"][1:] if count)
    offsets = logprobs["text_offset"]
    assert offsets[size:] == [len(prompt) + offset for offset in own["logprobs"]["text_offset"]]
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        assert "\ufffd" in token or echoed["text"].startswith(token, offset)


def test_streamed_logprobs_of_an_echo_are_the_plain_ones(server: ServerProcess) -> None:
    """Several choices of a long prompt: only the first of them computes the prompt's logprobs."""
    body = {"prompt": PROMPT + " so" * 600, "n": 3, "seed": 1, "temperature": 1, "echo": True, "logprobs": 1}
    plain = answered(server, **body)["choices"]
    parts = joined(streamed(server, **body), 3)
    assert [(each["text"], each["logprobs"]) for each in parts] == [(each["text"], each["logprobs"]) for each in plain]


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_alone_with_its_logprobs(server: ServerProcess, stream: bool) -> None:
    body = {"max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        *parts, usage = streamed(server, **body, stream_options={"include_usage": True})
        (choice,) = joined(parts, 1)
        counts = usage["usage"]
    else:
        answer = answered(server, **body)
        (choice,), counts = answer["choices"], answer["usage"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == counts["prompt_tokens"] == counts["total_tokens"] == len(encode(PROMPT))
    assert "".join(choice["logprobs"]["tokens"]) == PROMPT
    assert counts["completion_tokens"] == 0


def test_the_best_candidates_are_those_with_the_highest_logprob_a_token(client: openai.Client) -> None:
    options = {"model": MODEL, "prompt": PROMPT, "temperature": 1.2, "seed": 3, "max_tokens": 6}
    all_of_them = client.completions.create(**options, n=5, logprobs=0)  # type: ignore[call-overload]
    best = client.completions.create(**options, n=2, best_of=5)  # type: ignore[call-overload]

    def mean(choice: Any) -> float:
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ranked = sorted(all_of_them.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert all(choice.logprobs is None for choice in best.choices)
    assert best.usage.completion_tokens == all_of_them.usage.completion_tokens
    assert len({mean(choice) for choice in all_of_them.choices}) == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 200}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 3, "n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"echo": "yes"}, "echo"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [PROMPT, ""]}, "prompt.1"),
        ({"prompt": [[5], [99_999]]}, "prompt.1.0"),
        ({"prompt_token_ids": [5, 99_999]}, "prompt_token_ids.1"),
        ({"prompt_token_ids": [[5], [5, -1]]}, "prompt_token_ids.1.1"),
        ({"prompt_token_ids": PROMPT}, "prompt_token_ids"),
        ({"tools": [{}]}, "tools"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)
def test_what_cannot_be_served_is_named(server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    answer = complete(server, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_token_ids_go_in_instead_of_a_prompt_and_come_out(server: ServerProcess) -> None:
    text = answered(server)["choices"][0]["text"]
    ids = encode(PROMPT)
    body = {"temperature": 0, "max_tokens": 4, "prompt_token_ids": ids, "return_token_ids": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=REQUEST_SECONDS).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["prompt_token_ids"], len(choice["token_ids"])) == (text, ids, 4)
    both = [answered(server, prompt="x", prompt_token_ids=[ids, ids], return_token_ids=True)["choices"]]
    assert [each["text"] for each in both[0]] == [text, text]
    parts = streamed(server, prompt_token_ids=ids, return_token_ids=True)
    own = [each for part in parts for each in part["choices"]]
    assert [token for each in own for token in each["token_ids"]] == choice["token_ids"]
    assert [each["prompt_token_ids"] for each in own if "prompt_token_ids" in each] == [ids]


def test_the_answers_id_is_made_from_the_requests(server: ServerProcess) -> None:
    assert answered(server, request_id="my-own")["id"] == "cmpl-my-own"
    assert {part["id"] for part in streamed(server, request_id="my-own", prompt=[PROMPT, OTHER])} == {"cmpl-my-own"}


def test_usage_in_every_event_counts_up(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = streamed(server, prompt=[PROMPT, OTHER], stream_options=options)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    assert counts[-1] == 8
