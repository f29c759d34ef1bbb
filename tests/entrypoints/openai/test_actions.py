"""Finishes and values of processors over every API, whole and streamed, with the real clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from support.server import ServerProcess

from fastdeploy_lp import LLM, SamplingParams

MESSAGES: list[Any] = [{"role": "user", "content": "the quick brown fox"}]
AT = 5
STOP = {"processor": "Acts", "reason": f"after {AT}"}
ACTS = {"Acts": {"finish_at": AT, "emit_at": [0, 3, AT]}}
OUTPUTS = {"Acts": [0, 3, AT]}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def server(authors_server: ServerProcess) -> ServerProcess:
    return authors_server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def extra(**fields: Any) -> dict[str, Any]:
    return {"ignore_eos": True, "return_token_ids": True, **fields}


def chat(client: openai.OpenAI, model: str, body: dict[str, Any] | None = None, **fields: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=MESSAGES, **{**GREEDY, **fields}, extra_body=extra(**(body or {}))
    )


@pytest.fixture(scope="module")
def plain(client: openai.OpenAI, model: str) -> Any:
    """The first tokens of the answer without actions, as a request with this limit has them."""
    return chat(client, model, max_tokens=AT).choices[0]


def post(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    answered = httpx.post(f"{server.url}{path}", json=body)
    assert answered.status_code == 200, answered.text
    return dict(answered.json())


def events(server: ServerProcess, path: str, **body: Any) -> list[dict[str, Any]]:
    with httpx.stream("POST", f"{server.url}{path}", json={**body, "stream": True}) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_a_chat_ends_with_its_processors_reason_and_values(client: openai.OpenAI, model: str, plain: Any) -> None:
    answered = chat(client, model, {"logits_processors": ACTS}, logprobs=True, top_logprobs=1)
    (choice,) = answered.choices
    assert (choice.message.content, choice.token_ids) == (plain.message.content, plain.token_ids)
    assert (choice.finish_reason, choice.stop_reason) == ("stop", STOP)
    assert choice.logits_processors_outputs == OUTPUTS
    assert len(choice.logprobs.content) == AT
    assert answered.usage.completion_tokens == AT


def test_a_streamed_chat_has_each_value_with_its_token(client: openai.OpenAI, model: str, plain: Any) -> None:
    body = {"logits_processors": ACTS}
    chunks = [chunk.choices[0] for chunk in chat(client, model, body, stream=True, logprobs=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == plain.message.content
    seen, values = 0, []
    for chunk in chunks:
        tokens = len(getattr(chunk, "token_ids", None) or [])
        for value in (getattr(chunk, "logits_processors_outputs", None) or {}).get("Acts", []):
            last = chunk.finish_reason is not None and value == AT
            assert last or seen <= value < seen + tokens
            values.append(value)
        seen += tokens
    assert (values, seen) == ([0, 3, AT], AT)
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", STOP)


def test_text_events_without_token_ids_have_their_values(server: ServerProcess, model: str, plain: Any) -> None:
    body = {"model": model, "messages": MESSAGES, **GREEDY, "ignore_eos": True, "logits_processors": ACTS}
    choices = [event["choices"][0] for event in events(server, "/v1/chat/completions", **body)]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == plain.message.content
    assert [v for each in choices for v in each.get("logits_processors_outputs", {}).get("Acts", [])] == [0, 3, AT]


def test_text_held_back_for_a_stop_string_holds_its_values_back(server: ServerProcess, model: str, plain: Any) -> None:
    never = "x" * 40
    body = {"model": model, "messages": MESSAGES, **GREEDY, "ignore_eos": True, "stop": never}
    found = events(server, "/v1/chat/completions", **body, logits_processors=ACTS)
    choices = [event["choices"][0] for event in found if event["choices"][0].get("finish_reason")]
    assert [(each["delta"]["content"], each["logits_processors_outputs"]) for each in choices] == [
        (plain.message.content, OUTPUTS)
    ]


def test_values_after_a_stop_string_are_dropped(client: openai.OpenAI, model: str, plain: Any) -> None:
    every = {"Acts": {"emit_at": list(range(12))}}
    choice = chat(client, model, {"logits_processors": every}, stop=plain.message.content[-1]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.logits_processors_outputs == {"Acts": list(range(len(choice.token_ids)))}


def test_one_of_several_choices_may_differ_and_all_have_values(client: openai.OpenAI, model: str) -> None:
    body = {"logits_processors": ACTS, "seed": 3}
    answered = chat(client, model, body, n=3, temperature=1.0)
    without = chat(client, model, {"seed": 3}, n=3, temperature=1.0, max_tokens=AT)
    for choice, alone in zip(answered.choices, without.choices, strict=True):
        assert (choice.token_ids, choice.stop_reason) == (alone.token_ids, STOP)
        assert choice.logits_processors_outputs == OUTPUTS


@pytest.mark.parametrize("stream", [False, True])
def test_completions_have_them_too(server: ServerProcess, model: str, stream: bool) -> None:
    body = {"model": model, "prompt": "the dog", **GREEDY, "ignore_eos": True}
    text = post(server, "/v1/completions", **{**body, "max_tokens": AT})["choices"][0]["text"]
    if stream:
        choices = [event["choices"][0] for event in events(server, "/v1/completions", **body, logits_processors=ACTS)]
    else:
        choices = post(server, "/v1/completions", **body, logits_processors=ACTS)["choices"]
    assert "".join(each["text"] for each in choices) == text
    assert [v for each in choices for v in each.get("logits_processors_outputs", {}).get("Acts", [])] == [0, 3, AT]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", STOP)


@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_them_too(server: ServerProcess, model: str, plain: Any, stream: bool) -> None:
    body = {"model": model, "input": MESSAGES, "temperature": 0, "max_output_tokens": 12, "ignore_eos": True}
    if stream:
        found = events(server, "/v1/responses", **body, logits_processors=ACTS)
        values = [v for each in found for v in each.get("logits_processors_outputs", {}).get("Acts", [])]
        assert values == [0, 3, AT]
        response = found[-1]["response"]
    else:
        response = post(server, "/v1/responses", **body, logits_processors=ACTS)
    assert response["output"][0]["content"][0]["text"] == plain.message.content
    assert (response["status"], response["stop_reason"]) == ("completed", STOP)
    assert response["logits_processors_outputs"] == OUTPUTS


@pytest.mark.parametrize("stream", [False, True])
def test_messages_have_them_too(server: ServerProcess, model: str, plain: Any, stream: bool) -> None:
    body = {"model": model, "messages": MESSAGES, **GREEDY, "ignore_eos": True, "logits_processors": ACTS}
    if stream:
        found = events(server, "/v1/messages", **body)
        text = "".join(each.get("delta", {}).get("text", "") for each in found)
        (stop,) = [each["delta"] for each in found if each["type"] == "message_delta"]
        values = [v for each in found for v in each.get("logits_processors_outputs", {}).get("Acts", [])]
    else:
        stop = post(server, "/v1/messages", **body)
        text, values = stop["content"][0]["text"], stop["logits_processors_outputs"]["Acts"]
    assert (text, values) == (plain.message.content, [0, 3, AT])
    assert (stop["stop_reason"], stop["stop_sequence"], stop["logits_processors_finish"]) == ("end_turn", None, STOP)


def test_a_guided_answer_ends_where_a_processor_says(client: openai.OpenAI, model: str) -> None:
    body = {"guided_regex": "[a-z]{30}"}
    whole = chat(client, model, body, max_tokens=AT).choices[0]
    cut = chat(client, model, {**body, "logits_processors": ACTS}).choices[0]
    assert (cut.token_ids, cut.stop_reason) == (whole.token_ids, STOP)


def test_a_bad_value_is_an_error_of_its_request(client: openai.OpenAI, model: str) -> None:
    body = {"logits_processors": {"ActsTyped": {"emit_at": [1], "emits": "many"}}}
    with pytest.raises(openai.InternalServerError, match="logits processor ActsTyped failed"):
        chat(client, model, body)


def test_classification_takes_no_token(client: openai.OpenAI, model: str) -> None:
    name = "ClassProbabilitiesLogitsProcessor"
    likely = chat(client, model, max_tokens=1, logprobs=True, top_logprobs=3).choices[0].logprobs.content[0]
    tokens = chat(client, model, max_tokens=1).choices[0].token_ids
    labels = [{"text": "other", "tokens": [260]}, {"text": "likely", "tokens": tokens}]
    body = {"logits_processors": {name: {"class_labels": labels}}}
    answered = chat(client, model, body)
    (choice,) = answered.choices
    assert (choice.message.content, choice.token_ids, answered.usage.completion_tokens) == ("", [], 0)
    assert choice.stop_reason == {"processor": name, "reason": "classified"}
    ((found,),) = choice.logits_processors_outputs.values()
    assert found["label"] == "likely"
    assert found["probabilities"]["likely"] == pytest.approx(math.exp(likely.logprob), rel=1e-4)
    assert 0 < found["probabilities"]["other"] < found["probabilities"]["likely"]


def test_counters_and_schemas_are_published(server: ServerProcess) -> None:
    cards = {card["name"]: card for card in httpx.get(f"{server.url}/v1/logits_processors").json()["data"]}
    assert cards["Acts"]["output"] is None
    assert cards["ActsTyped"]["output"]["properties"] == {"score": {"title": "Score", "type": "number"}}
    schemas = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    assert schemas["logits_processors_outputs.ActsTyped"] == cards["ActsTyped"]["output"]
    body = {"messages": MESSAGES, **GREEDY, "ignore_eos": True, "logits_processors": ACTS}
    before = cards["Acts"]["counters"]
    post(server, "/v1/chat/completions", **body)
    after = {card["name"]: card for card in httpx.get(f"{server.url}/v1/logits_processors").json()["data"]}["Acts"]
    gained = {field: after["counters"][field] - before[field] for field in ("finishes", "emitted")}
    assert gained == {"finishes": 1, "emitted": 3}
    metrics = httpx.get(f"{server.url}/metrics", follow_redirects=True)
    if metrics.status_code == 200:
        assert 'logits_processor_finishes_total{processor="Acts"}' in metrics.text


def test_offline_answers_have_them(authors_llm: LLM) -> None:
    params = {"temperature": 0, "ignore_eos": True}
    plain = authors_llm.chat(MESSAGES, SamplingParams(max_tokens=AT, **params), use_tqdm=False)[0].outputs
    done = authors_llm.chat(MESSAGES, SamplingParams(max_tokens=12, logits_processors=ACTS, **params), use_tqdm=False)
    found = done[0].outputs
    assert (found.text, found.token_ids) == (plain.text, plain.token_ids)
    assert (found.finish_reason, found.stop_reason) == ("stop", STOP)
    assert found.logits_processors_outputs == OUTPUTS
