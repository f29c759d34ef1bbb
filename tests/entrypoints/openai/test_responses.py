"""POST /v1/responses and what it stored, through the real client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter
from support.chat import MODEL, encode, post
from support.forced import AT_ONCE, says
from support.idle_engine import idle
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.openai.protocol.response_events import ResponseEvent
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs

EVENTS: TypeAdapter[ResponseEvent] = TypeAdapter(ResponseEvent)
THOUGHT, ANSWER = "\nHm, 🤔 <b>?\n", "\n\nYes."
ARGUMENTS = {"city": "Köln 🏙", "days": [1, 2]}
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}\n</tool_call>'
SECOND = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
HALF = "\ud800"
TEXTS = {
    "text": "It is sunny. 🌞",
    "nothing": "",
    "reasoning": f"<think>{THOUGHT}</think>{ANSWER}",
    "a call": CALL,
    "all": f"<think>{THOUGHT}</think>Let me look.\n{CALL}\n{SECOND}",
}


def create(client: openai.Client, said: str, **fields: Any) -> Response:
    """The response of a model that says this text."""
    own = fields.pop("extra_body", {})
    asked = {"model": MODEL, "input": "Go", "tools": [WEATHER], **fields}
    response: Response = client.responses.create(**asked, extra_body={**says(said), **own})
    return response


def events(client: openai.Client, text: str, **fields: Any) -> list[ResponseStreamEvent]:
    return list(create(client, text, stream=True, **fields))  # type: ignore[arg-type]


def compared(response: Response) -> dict[str, Any]:
    """All but what differs between two answers to the same request, and what the client's parser adds."""

    def without_ids(value: Any) -> Any:
        if isinstance(value, dict):
            changing = ("id", "call_id", "created_at", "completed_at", "cached_tokens", "parsed", "parsed_arguments")
            return {name: without_ids(each) for name, each in value.items() if name not in changing}
        return [without_ids(each) for each in value] if isinstance(value, list) else value

    found: dict[str, Any] = without_ids(response.model_dump(mode="json", warnings=False))
    return found


def kinds(response: Response) -> list[str]:
    return [item.type for item in response.output]


def test_a_text_is_one_message(scripted: openai.Client) -> None:
    response = create(scripted, TEXTS["text"], metadata={"a": "b"}, instructions="Be brief.")
    assert (response.status, response.output_text, kinds(response)) == ("completed", TEXTS["text"], ["message"])
    assert response.usage is not None
    assert response.usage.output_tokens == len(encode(TEXTS["text"])) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.metadata, response.instructions, response.model) == ({"a": "b"}, "Be brief.", MODEL)
    assert (response.error, response.incomplete_details, response.store) == (None, None, True)


def test_reasoning_text_and_calls_are_items_in_this_order(scripted: openai.Client) -> None:
    response = create(scripted, TEXTS["all"])
    reasoning, message, *calls = response.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or []] == [THOUGHT]
    assert message.type == "message"
    assert response.output_text == "Let me look."
    assert [(call.name, json.loads(call.arguments)) for call in calls if call.type == "function_call"] == [
        ("get_weather", ARGUMENTS),
        ("now", {}),
    ]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len(encode(f"<think>{THOUGHT}</think>"))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_stream_comes_to_the_plain_response(kind: str, scripted: openai.Client) -> None:
    plain = create(scripted, TEXTS[kind])
    asked: dict[str, Any] = {"model": MODEL, "input": "Go", "tools": [WEATHER]}
    with scripted.responses.stream(**asked, extra_body=says(TEXTS[kind])) as stream:
        found = list(stream)
        final = stream.get_final_response()
    assert compared(final) == compared(plain)
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert [event.type for event in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1].type == "response.completed"


@pytest.mark.parametrize("kind", TEXTS)
def test_the_events_of_an_item_enclose_its_pieces(kind: str, scripted: openai.Client) -> None:
    open_item, text, done = None, "", []
    for event in events(scripted, TEXTS[kind]):
        if event.type == "response.output_item.added":
            assert open_item is None
            assert event.output_index == len(done)
            open_item, text = event.item.id, ""
        elif event.type.endswith(".delta"):
            assert event.item_id == open_item  # type: ignore[union-attr]
            text += event.delta  # type: ignore[union-attr,operator]
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert event.text == text  # type: ignore[union-attr]
        elif event.type == "response.function_call_arguments.done":
            assert event.arguments == text
        elif event.type == "response.output_item.done":
            assert event.item.id == open_item
            done.append(event.item.type)
            open_item = None
    assert open_item is None
    assert done == kinds(create(scripted, TEXTS[kind]))


@pytest.mark.parametrize("kind", TEXTS)
def test_events_have_names_and_the_declared_fields(kind: str, scripted_server: ServerProcess) -> None:
    tool = {name: value for name, value in WEATHER.items() if name != "strict"}
    own = {"top_logprobs": 1, "return_token_ids": True, "logits_processors_trace": {"top_k": 1, "max_tokens": 3}}
    body = {"input": "Go", "stream": True, "tools": [tool], **own, **says(TEXTS[kind])}
    answer = httpx.post(f"{scripted_server.url}/v1/responses", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.strip().split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        event = EVENTS.validate_json(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
    assert json.loads(blocks[-1].split("data: ")[1])["type"] == "response.completed"


def test_a_response_at_its_bound_is_incomplete(scripted: openai.Client) -> None:
    plain = create(scripted, TEXTS["text"], max_output_tokens=2)
    *_, last = events(scripted, TEXTS["text"], max_output_tokens=2)
    assert last.type == "response.incomplete"
    for response in (plain, last.response):
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert [item.status for item in response.output] == ["incomplete"]  # type: ignore[union-attr]
    assert compared(plain) == compared(last.response)


def test_a_conversation_goes_on_from_a_stored_response(scripted: openai.Client) -> None:
    first = create(scripted, CALL, input="How is the weather?", instructions="Be brief.")
    (call,) = first.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "22 C"}
    chained = create(scripted, "Sunny.", input=[result], previous_response_id=first.id)
    whole = [{"role": "user", "content": "How is the weather?"}, call.model_dump(exclude_none=True), result]
    explicit = create(scripted, "Sunny.", input=whole)
    assert chained.usage is not None
    assert explicit.usage is not None
    assert chained.usage.input_tokens == explicit.usage.input_tokens
    assert chained.previous_response_id == first.id
    third = create(scripted, "Bye.", input="Thanks.", previous_response_id=chained.id)
    listed = scripted.responses.input_items.list(third.id, order="asc").data
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output", "message", "message"]
    assert [item.id for item in scripted.responses.input_items.list(third.id, limit=2)] == [
        item.id for item in reversed(listed)
    ]


def test_a_stored_response_is_fetched_and_deleted(scripted: openai.Client) -> None:
    plain = create(scripted, TEXTS["all"])
    assert compared(scripted.responses.retrieve(plain.id)) == compared(plain)
    streamed = events(scripted, TEXTS["all"])[-1]
    assert streamed.type == "response.completed"
    assert scripted.responses.retrieve(streamed.response.id).model_dump() == streamed.response.model_dump()
    scripted.responses.delete(plain.id)
    for use in (
        lambda: scripted.responses.retrieve(plain.id),
        lambda: scripted.responses.delete(plain.id),
        lambda: scripted.responses.input_items.list(plain.id),
        lambda: create(scripted, "No.", previous_response_id=plain.id),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            use()
        assert caught.value.code == "response_not_found"


def test_a_response_that_is_not_to_be_stored_is_not(scripted: openai.Client) -> None:
    response = create(scripted, "Yes.", store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        scripted.responses.retrieve(response.id)


def test_a_response_in_the_background(scripted: openai.Client) -> None:
    begun = create(scripted, TEXTS["all"], background=True)
    assert (begun.status, begun.output, begun.background) == ("in_progress", [], True)
    found = begun
    while found.status == "in_progress":
        found = scripted.responses.retrieve(begun.id)
    expected = compared(create(scripted, TEXTS["all"])) | {"background": True}
    assert compared(found) == expected


def test_a_response_in_the_background_is_cancelled(scripted: openai.Client) -> None:
    begun = create(scripted, "no. " * 600, background=True)
    ended = scripted.responses.cancel(begun.id)
    assert ended.status == "cancelled"
    assert scripted.responses.retrieve(begun.id).status == "cancelled"
    assert scripted.responses.cancel(begun.id).status == "cancelled"
    finished = create(scripted, "Yes.")
    with pytest.raises(openai.BadRequestError, match="only a response with background: true can be cancelled"):
        scripted.responses.cancel(finished.id)


@pytest.mark.parametrize("every", [False, True])
def test_a_response_in_the_background_is_aborted_as_other_requests_are(scripted: openai.Client, every: bool) -> None:
    begun = create(scripted, "no. " * 600, background=True)
    asked = {"abort_all": True} if every else {"req_ids": [begun.id]}
    told: Any = scripted.post("/abort_requests", body=asked, cast_to=object)
    assert len(told["result"]["aborted"]) == 1
    found = begun
    while found.status == "in_progress":
        found = scripted.responses.retrieve(begun.id)
    assert found.status == "cancelled"
    again: Any = scripted.post("/abort_requests", body={"req_ids": [begun.id]}, cast_to=object)
    assert again["result"] == {"aborted": [], "not_found": [begun.id]}


def test_a_response_in_the_background_can_be_deleted(scripted: openai.Client) -> None:
    begun = create(scripted, "no. " * 600, background=True)
    scripted.responses.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        scripted.responses.retrieve(begun.id)


class Person(BaseModel):
    """Parsed by the client."""

    name: Annotated[str, Field(max_length=8)]
    age: Annotated[int, Field(ge=0, le=99)]


def test_json_of_a_schema_is_parsed_by_the_client(scripted: openai.Client) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "Bob is 12.", "text_format": Person}
    parsed = scripted.responses.parse(**asked, max_output_tokens=60, temperature=0, extra_body=AT_ONCE)
    assert isinstance(parsed.output_parsed, Person)


def test_a_chosen_function_is_called(scripted: openai.Client) -> None:
    properties = {"properties": {"n": {"enum": [1]}}, "required": ["n"], "additionalProperties": False}
    tool = {**WEATHER, "parameters": {"type": "object", **properties}}
    asked: dict[str, Any] = {"model": MODEL, "input": "Go", "tools": [tool], "temperature": 0}
    chosen: Any = {"type": "function", "name": "get_weather"}
    response = scripted.responses.create(**asked, tool_choice=chosen, extra_body=AT_ONCE)
    (call,) = response.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"n": 1}


def test_logprobs_and_tokens_are_those_of_a_chat(scripted: openai.Client, scripted_server: ServerProcess) -> None:
    own = {"return_token_ids": True, "logits_processors_trace": {"top_k": 2}}
    fields: dict[str, Any] = {"top_logprobs": 2, "temperature": 0, "extra_body": own}
    plain = create(scripted, "Yes, yes.", **fields)
    chat = post(
        scripted_server,
        {"messages": [{"role": "user", "content": "Go"}], "logprobs": True, "top_logprobs": 2, "temperature": 0}
        | own
        | {"tools": [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER["parameters"]}}]}
        | says("Yes, yes."),
    ).json()["choices"][0]
    (message,) = plain.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert [each.model_dump() for each in part.logprobs or []] == chat["logprobs"]["content"]
    extra = plain.model_extra or {}
    assert extra["token_ids"] == chat["token_ids"]
    traced = [[stage["top"] for stage in each["stages"]] for each in extra["logits_processors_trace"]]
    assert traced == [[stage["top"] for stage in each["stages"]] for each in chat["logits_processors_trace"]]
    found = events(scripted, "Yes, yes.", **fields)
    deltas = [event for event in found if event.type == "response.output_text.delta"]
    told = [event.model_dump(warnings=False) for event in (*deltas, found[-1])]
    streamed = [each["token"] for event in told for each in event.get("logprobs", [])]
    assert streamed == [each["token"] for each in chat["logprobs"]["content"]]
    assert [token for each in told for token in each.get("token_ids", [])] == chat["token_ids"]
    assert sum(len(each.get("logits_processors_trace", [])) for each in told) == len(traced)


def test_tokens_of_a_conversation_are_counted(scripted: openai.Client) -> None:
    asked: dict[str, Any] = {"input": "Go", "instructions": "Be brief.", "tools": [WEATHER]}
    counted = scripted.responses.input_tokens.count(model=MODEL, **asked)
    usage = create(scripted, "Yes.", **asked).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens
    assert scripted.responses.input_tokens.count(model=MODEL, input="no " * 9000).input_tokens > 9000
    with pytest.raises(openai.NotFoundError):
        scripted.responses.input_tokens.count(model="another", input="Go")


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"background": True, "store": False}, "background", "only allowed without store: false"),
        ({"background": True, "stream": True}, "background", "only allowed without stream: true"),
        ({"truncation": "auto"}, "truncation", "Input should be 'disabled'"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'web_search' is not supported"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id is supported"),
        ({"prompt": {"id": "p"}}, "prompt", "this server keeps no prompts"),
        ({"extra_body": {"n": 2}}, "n", "a response is one answer"),
        ({"extra_body": {"max_tokens": 2}}, "max_tokens", "replaced by max_output_tokens"),
        ({"extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs", "chat completions have them"),
        ({"max_output_tokens": 0}, "max_output_tokens", "must be an integer from 1"),
        ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "only message, function_call"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.type",
            "'input_image' is not supported",
        ),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "Input should be"),
        ({"input": []}, "input", "at least one message is needed"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "needed"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}, "tools": []},
            "text.format.schema",
            "nonsense",
        ),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "is none of the tools"),
    ],
)
def test_a_mistake_is_named(fields: dict[str, Any], param: str, reason: str, scripted: openai.Client) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        create(scripted, "Yes.", **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "input": [
                    {"role": "user", "content": HALF},
                    {"type": "function_call_output", "call_id": "c", "output": "1"},
                ]
            },
            "input",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": HALF}]}, "input"),
        ({"metadata": {"a": HALF}}, "metadata"),
        ({"user": HALF}, "user"),
        ({"instructions": HALF}, "instructions"),
    ],
    ids=ascii,
)
def test_half_a_surrogate_pair_is_refused(
    fields: dict[str, Any], param: str, stream: bool, scripted_server: ServerProcess
) -> None:
    body = {"input": "Go", "max_output_tokens": 2, "stream": stream, **fields}
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{scripted_server.url}/v1/responses", content=json.dumps(body), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"{param}: no valid Unicode: surrogates not allowed"
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 101}, {"order": "random"}, {"after": "nothing"}])
def test_a_mistake_in_a_query_is_refused(query: dict[str, Any], scripted: openai.Client) -> None:
    response = create(scripted, "Yes.")
    with pytest.raises(openai.BadRequestError) as caught:
        scripted.responses.input_items.list(response.id, **query)
    assert caught.value.param == next(iter(query))


def test_a_stored_response_is_not_streamed_again(scripted: openai.Client) -> None:
    response = create(scripted, "Yes.")
    with pytest.raises(openai.BadRequestError, match="only false is allowed"):
        scripted.responses.retrieve(response.id, stream=True)


@pytest.fixture
def stored_in_file(tmp_path: Path) -> ServerArgs:
    """Two keys, and a file for the responses of each."""
    return ServerArgs(
        api_key=["one", "two"], response_store=str(tmp_path / "responses.db"), response_store_max_bytes=8000
    )


@pytest.fixture
def keyed_server(tiny_checkpoint: Path, stored_in_file: ServerArgs) -> Iterator[ServerProcess]:
    options = [word for key in stored_in_file.api_key for word in ("--api-key", key)]
    options += ["--response-store", str(stored_in_file.response_store)]
    options += ["--response-store-max-bytes", str(stored_in_file.response_store_max_bytes)]
    options += ["--logits-processors", "support.served_faults:RaisesOnBoom"]
    with ServerProcess(*options, model=str(tiny_checkpoint), own_metrics_port=False) as running:
        yield running


def of_key(server: ServerProcess, key: str) -> openai.Client:
    return openai.Client(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_responses_belong_to_a_key_and_outlive_the_server(
    keyed_server: ServerProcess, stored_in_file: ServerArgs, tmp_path: Path
) -> None:
    short: dict[str, Any] = {"model": "default", "input": "Go", "max_output_tokens": 3}
    with of_key(keyed_server, "one") as one, of_key(keyed_server, "two") as two:
        kept = one.responses.create(**short)
        begun = one.responses.create(**short | {"max_output_tokens": 200}, background=True)
        for use in (two.responses.retrieve, two.responses.delete, two.responses.cancel):
            for name in (kept.id, begun.id):
                with pytest.raises(openai.NotFoundError):
                    use(name)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(**short, previous_response_id=kept.id)
        one.responses.cancel(begun.id)
        large = one.responses.create(**short, metadata={f"{n}": "x" * 512 for n in range(16)})
        assert large.store is False
        fails = {"logits_processors_args": {"boom": 1}, "ignore_eos": True}
        failing = one.responses.create(**short, stream=True, extra_body=fails)
        *_, last = list(failing)
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.code == "server_error"
    keyed_server.stop()

    async def after_another_start() -> None:
        async with idle(tmp_path, args=stored_in_file) as again:
            transport = httpx.ASGITransport(app=again.app)
            async with (
                httpx.AsyncClient(transport=transport) as http,
                openai.AsyncClient(base_url="http://here/v1", api_key="one", http_client=http, max_retries=0) as one,
            ):
                assert (await one.responses.retrieve(kept.id)).model_dump() == kept.model_dump()
                next_turn = asyncio.create_task(one.responses.create(**short, previous_response_id=kept.id))
                while not again.worker.sent:
                    assert not next_turn.done()
                    await asyncio.sleep(0.01)
                next_turn.cancel()

    asyncio.run(after_another_start())
