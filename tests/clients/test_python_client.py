"""What the real OpenAI client makes of failures, headers, time limits and its own helpers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from support.clients.calls import MODEL_NAME
from support.clients.case import BASE, CHAT, USER, Route
from support.clients.chat_cases import CALL, WEATHER
from support.clients.failures import CLIENT_KEY, FAILURES, Failure
from support.clients.python_client import PythonAsker
from support.server import ServerProcess, free_port, wait_until

AskerOf = Callable[[Route], PythonAsker]
ENDLESS: dict[str, Any] = {"model": "default", "messages": USER, "max_tokens": 900, "temperature": 0}
IGNORE_EOS = {"ignore_eos": True}
SECONDS = 30.0


@pytest.fixture
def reset(root: openai.Client) -> Any:
    """The processor that a test makes fail is in service again for the next one."""
    yield
    root.post("/v1/logits_processors/RaisesOnBoom/reset", cast_to=object)


def running(root: openai.Client) -> int:
    load: Any = root.get("/load", cast_to=object)
    return int(load["server_load"])


def aborted(root: openai.Client) -> float:
    """How many sequences were ended before they had ended by themselves."""
    text = root.get("/metrics", cast_to=str)
    name = "fastdeploy_lp:request_aborted_total "
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


@pytest.mark.usefixtures("reset")
@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: f"{each.status}-{each.code}")
def test_a_failure_is_an_exception_of_its_class(failure: Failure, root: openai.Client) -> None:
    client = root.with_options(api_key=failure.api_key)
    with pytest.raises(openai.APIStatusError) as caught:
        client.post(failure.path, body=failure.body, cast_to=object)
    error = caught.value
    assert type(error).__name__ == (failure.raises or "APIStatusError")
    assert (error.status_code, error.code, error.param) == (failure.status, failure.code, failure.param)
    assert error.request_id == error.response.headers["x-request-id"]
    assert error.body is not None


def test_a_full_server_raises_rate_limit_error_and_says_when_to_come_again(
    sdk: openai.Client, root: openai.Client
) -> None:
    with sdk.chat.completions.create(**ENDLESS, n=16, stream=True, extra_body=IGNORE_EOS) as stream:
        next(stream)
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.chat.completions.create(**ENDLESS)
        assert caught.value.code == "rate_limit_exceeded"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            sdk.embeddings.create(model="default", input="a")
        waiting = sdk.with_options(max_retries=5)
        root.post("/v1/abort_requests", body={"abort_all": True}, cast_to=object)
        # The client's own retries are all that a program needs.
        assert waiting.completions.create(model="default", prompt="a", max_tokens=1).choices
    wait_until(lambda: running(root) == 0, SECONDS)


@pytest.mark.usefixtures("reset")
def test_a_failure_in_the_middle_of_a_stream_is_raised_where_it_is_read(sdk: openai.Client) -> None:
    boom = {"logits_processors_args": {"boom": 3}, **IGNORE_EOS}
    with sdk.chat.completions.create(**ENDLESS, stream=True, extra_body=boom) as stream:
        assert next(stream).choices[0].delta.role == "assistant"
        with pytest.raises(openai.APIError, match="RaisesOnBoom") as caught:
            list(stream)
    assert caught.value.code == "request_failed"


def test_a_time_limit_ends_the_request(sdk: openai.Client, root: openai.Client) -> None:
    before = aborted(root)
    with pytest.raises(openai.APITimeoutError):
        sdk.chat.completions.create(**ENDLESS, n=8, extra_body=IGNORE_EOS, timeout=openai.Timeout(SECONDS, read=0.05))
    wait_until(lambda: aborted(root) == before + 8, SECONDS)


def test_a_stream_that_is_closed_ends_the_request(sdk: openai.Client, root: openai.Client) -> None:
    before = aborted(root)
    stream = sdk.chat.completions.create(**ENDLESS, stream=True, extra_body=IGNORE_EOS)
    next(stream)
    stream.close()
    wait_until(lambda: aborted(root) == before + 1, SECONDS)


def test_a_task_that_is_cancelled_ends_the_request(served: ServerProcess, root: openai.Client) -> None:
    before = aborted(root)

    async def leave() -> None:
        async with openai.AsyncClient(base_url=f"{served.url}/v1", api_key=CLIENT_KEY) as client:
            asked = asyncio.ensure_future(client.chat.completions.create(**ENDLESS, n=8, extra_body=IGNORE_EOS))
            while '"running":0' in await client.get(f"{served.url}/load", cast_to=str):
                assert not asked.done()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    asyncio.run(leave())
    wait_until(lambda: aborted(root) == before + 8, SECONDS)


def test_nobody_there_is_a_connection_error() -> None:
    with (
        openai.Client(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key=CLIENT_KEY, max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()


def test_an_abort_ends_a_request_of_another_client(sdk: openai.Client, root: openai.Client) -> None:
    named = {"request_id": "to-be-ended", **IGNORE_EOS}
    with sdk.chat.completions.create(**ENDLESS, stream=True, extra_body=named) as stream:
        assert next(stream).id == "chatcmpl-to-be-ended"
        told: Any = root.post("/v1/abort_requests", body={"req_ids": ["to-be-ended"]}, cast_to=object)
        assert [each["request_id"] for each in told["result"]["aborted"]] == ["to-be-ended"]
        *_, last = stream
    # The client's types know OpenAI's reasons only, and let others pass.
    assert str(last.choices[0].finish_reason) == "abort"


def test_models_are_listed_and_retrieved(sdk: openai.Client) -> None:
    (model,) = sdk.models.list()
    assert model.id == MODEL_NAME
    assert sdk.models.retrieve(MODEL_NAME).id == MODEL_NAME
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("gpt")


def test_raw_responses_have_the_headers(sdk: openai.Client) -> None:
    named = {"X-Request-Id": "raw-1"}
    raw = sdk.chat.completions.with_raw_response.create(**BASE[CHAT], extra_headers=named)
    assert raw.headers["x-request-id"] == raw.request_id == "raw-1"
    answer = raw.parse()
    assert answer.choices[0].message.content is not None
    assert answer._request_id == "raw-1"
    streaming = sdk.completions.with_streaming_response.create(model="default", prompt="a", max_tokens=1, temperature=0)
    with streaming as response:
        assert response.headers["content-type"] == "application/json"
        assert len(response.headers["x-request-id"]) == 32
        assert response.parse().choices[0].finish_reason == "length"
    assert sdk.embeddings.with_raw_response.create(model="default", input="a").headers["x-request-id"]


def test_the_clients_stream_helper_puts_the_answer_together(sdk: openai.Client, asker_of: AskerOf) -> None:
    script = {"logits_processors_args": {"forced_tokens": asker_of(CHAT).encode(f"Let me look. {CALL}")}}
    asked: dict[str, Any] = {"model": "default", "messages": USER, "tools": [WEATHER], "extra_body": script}
    with sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.done"} <= kinds
    (call,) = whole.choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Köln"}')
    assert whole.choices[0].message.content == "Let me look."
    plain = sdk.chat.completions.create(**asked)
    assert whole.usage is not None
    assert plain.usage is not None
    # The second one finds the prompt in the cache.
    assert whole.usage.total_tokens == plain.usage.total_tokens
    assert whole.choices[0].finish_reason == plain.choices[0].finish_reason == "tool_calls"


def test_a_conversation_goes_on_with_the_clients_own_messages(sdk: openai.Client, asker_of: AskerOf) -> None:
    encode = asker_of(CHAT).encode

    def ask(messages: list[Any], text: str) -> Any:
        script = {"logits_processors_args": {"forced_tokens": encode(text)}}
        answer = sdk.chat.completions.create(model="default", messages=messages, tools=[WEATHER], extra_body=script)  # type: ignore[list-item]
        return answer.choices[0].message

    called = ask(USER, CALL)
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "22 C"}
    said = ask([*USER, called, result], "22 C.")
    assert said.content == "22 C."
    assert ask([*USER, called, result, said, *USER], "Bye.").content == "Bye."
