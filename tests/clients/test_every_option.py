"""The real OpenAI client, blocking and asynchronous, plain and streaming, through every option of every body."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import openai
import pytest
from support.clients.answer import Answer
from support.clients.calls import ABORT, CALLS, EMBEDDING_BASE, EMBEDDING_CASES, Call, EmbeddingCase, vectors_of
from support.clients.case import BASE, CHAT, COMPLETIONS, STREAMED, Case, Route
from support.clients.chat_cases import CHAT_CASES
from support.clients.completion_cases import COMPLETION_CASES
from support.clients.failures import CLIENT_KEY, FAILURES
from support.clients.message_calls import COUNT_TOKENS, COUNTED, MESSAGE_CASES, MESSAGES
from support.clients.python_client import (
    PythonAsker,
    arguments,
    async_plain,
    async_streamed,
    content_of,
    create_of,
    dumped,
    native,
    plain,
    streamed,
)
from support.clients.response_calls import INPUT_TOKENS, RESPONSES
from support.clients.schema import all_fields, body_schemas, fields_of, operations
from support.clients.tables import CASES, REFUSED
from support.server import ServerProcess
from support.wasm import NO_REPEATS

from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest

AskerOf = Callable[[Route], PythonAsker]
Ways = tuple[Callable[..., Any], ...]
# An option takes one pair: it has a plain and a streamed answer, one of each client.
PAIRS: tuple[Ways, ...] = ((plain, async_streamed), (streamed, async_plain))
EMBEDDINGS = "/v1/embeddings"
# Operations of the client's methods for stored responses.
STORED = {
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
    "GET /v1/responses/{response_id}/input_items",
}
# Operations of `test_an_upload_by_the_clients_get_post_and_delete`.
UPLOADS = {
    "POST /v1/logits_processors",
    "GET /v1/logits_processors/{name}",
    "DELETE /v1/logits_processors/{name}",
}
BODIES: dict[Route, type[GenerationRequest]] = {CHAT: ChatCompletionRequest, COMPLETIONS: CompletionRequest}


class AsyncWays:
    """The asynchronous client on an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.client = openai.AsyncClient(base_url=f"{url}/v1", api_key=CLIENT_KEY, max_retries=0)

    def ask(self, way: Callable[..., Any], route: Route, body: dict[str, Any]) -> Answer:
        """The answer to a request that is asked in one of the two ways."""
        answer: Answer = self._loop.run_until_complete(way(self.client, route, body))
        return answer

    def embed(self, body: dict[str, Any]) -> Any:
        """The answer with embeddings."""
        create = self.client.embeddings.create
        return self._loop.run_until_complete(create(**arguments(create, body)))

    def close(self) -> None:
        """End the connections and the loop."""
        self._loop.run_until_complete(self.client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@pytest.fixture(scope="module")
def async_ways(served: ServerProcess) -> Iterator[AsyncWays]:
    ways = AsyncWays(served.url)
    yield ways
    ways.close()


@pytest.fixture(scope="module")
def document(root: openai.Client) -> dict[str, Any]:
    """What the server says of itself."""
    found: dict[str, Any] = json.loads(root.get("/openapi.json", cast_to=str))
    return found


@pytest.mark.parametrize(
    ("route", "case", "ways"),
    [
        pytest.param(*each, ways, id=f"{each[0].split('/')[2]}-{each[1].name}")
        for each, ways in zip(CASES, cycle(PAIRS), strict=False)
    ],
)
def test_an_option_does_what_it_says(
    route: Route, case: Case, ways: Ways, sdk: openai.Client, async_ways: AsyncWays, asker_of: AskerOf
) -> None:
    asker = asker_of(route)
    body = case.body(route, asker)
    answers = [
        async_ways.ask(way, route, body) if way in (async_plain, async_streamed) else way(sdk, route, body)
        for way in ways
        if case.streamed in (None, way in (streamed, async_streamed))
    ]
    assert len(answers) == (2 if case.streamed is None else 1)
    for answer in answers:
        assert answer == answers[0]
        case.check(answer, asker)


@pytest.mark.parametrize("case", EMBEDDING_CASES, ids=lambda case: f"{case.option}-{case.fields[case.option]}")
def test_an_option_of_embeddings_does_what_it_says(
    case: EmbeddingCase, sdk: openai.Client, async_ways: AsyncWays
) -> None:
    create = sdk.embeddings.create
    usual = vectors_of(dumped(create(**EMBEDDING_BASE)))
    answer = create(**arguments(create, case.body))
    for each in (answer, async_ways.embed(case.body)):
        case.check(vectors_of(dumped(each)), usual)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.operation} {json.dumps(call.body)[-40:]}")
def test_other_routes_by_the_clients_get_and_post(call: Call, root: openai.Client) -> None:
    if call.method == "GET":
        text = root.get(call.path, cast_to=str)
    else:
        text = root.post(call.path, body=call.body, cast_to=str)
    call.check(content_of(text))


def test_stored_responses_by_the_clients_own_methods(sdk: openai.Client) -> None:
    response = sdk.responses.create(model="default", input="Go", max_output_tokens=2)
    assert sdk.responses.retrieve(response.id).output_text == response.output_text
    assert [item.type for item in sdk.responses.input_items.list(response.id)] == ["message"]
    counted = sdk.responses.input_tokens.count(input="On", previous_response_id=response.id).input_tokens
    later = sdk.responses.create(model="default", input="On", previous_response_id=response.id, max_output_tokens=2)
    assert later.usage is not None
    assert later.usage.input_tokens == counted
    sdk.responses.delete(response.id)
    begun = sdk.responses.create(model="default", input="Go", background=True)
    assert sdk.responses.cancel(begun.id).status in ("cancelled", "completed", "incomplete")


def test_an_upload_by_the_clients_get_post_and_delete(root: openai.Client) -> None:
    sent = {"name": "mine", "module": base64.b64encode(NO_REPEATS.read_bytes()).decode()}
    card = json.loads(root.post("/v1/logits_processors", body=sent, cast_to=str))
    path = f"/v1/logits_processors/{card['name']}"
    assert json.loads(root.get(path, cast_to=str)) == card
    assert json.loads(root.delete(path, cast_to=str))["deleted"]
    with pytest.raises(openai.NotFoundError):
        root.get(path, cast_to=str)


@pytest.mark.parametrize(("route", "param", "fields"), REFUSED)
def test_what_is_not_served_is_refused_by_name(
    route: Route, param: str, fields: dict[str, Any], sdk: openai.Client
) -> None:
    create = create_of(sdk, route)
    with pytest.raises(openai.BadRequestError) as caught:
        create(**arguments(create, BASE[route] | fields))
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code in ("invalid_value", "unknown_parameter")
    assert f"{param}: " in caught.value.message


@pytest.mark.parametrize("route", BODIES)
def test_values_that_ask_for_nothing_are_taken(route: Route, sdk: openai.Client, asker_of: AskerOf) -> None:
    without_effect = BODIES[route].without_effect
    for place in range(max(map(len, without_effect.values()))):
        nothing = {name: values[min(place, len(values) - 1)] for name, values in without_effect.items()}
        assert plain(sdk, route, BASE[route] | nothing) == asker_of(route).answer()


@pytest.mark.parametrize("route", BODIES)
def test_every_argument_of_the_client_is_served_or_refused_by_name(route: Route, sdk: openai.Client) -> None:
    served = {case.option for each, case in CASES if each == route}
    refused = {name for each, _, fields in REFUSED for name in fields if each == route}
    assert native(create_of(sdk, route)) <= served | refused


def test_every_operation_is_called(document: dict[str, Any]) -> None:
    called = {call.operation for call in CALLS} | {f"POST {route}" for route in (CHAT, COMPLETIONS, EMBEDDINGS)}
    assert called | STORED | UPLOADS == operations(document)


def test_every_field_of_every_body_is_sent(document: dict[str, Any], asker_of: AskerOf) -> None:
    """A field that is new in the schema needs a case; one that only a refused body has, needs that."""
    schemas = body_schemas(document)
    sent = [(f"POST {route}", case.body(route, asker_of(route))) for route, case in CASES]
    sent += [(f"POST {route}", STREAMED) for route in BODIES]
    sent += [(f"POST {route}", fields) for route, _, fields in REFUSED]
    sent += [(f"POST {EMBEDDINGS}", case.body) for case in EMBEDDING_CASES]
    sent += [(call.operation, call.body) for call in CALLS if call.body is not None]
    sent += [(f"POST {each.path}", each.body) for each in FAILURES if f"POST {each.path}" in schemas]
    # `test_stored_responses_by_the_clients_own_methods` sends the id of a response.
    sent += [(f"POST {path}", {"previous_response_id": "resp"}) for path in (RESPONSES, INPUT_TOKENS)]
    found = {field for operation, body in sent for field in fields_of(document, schemas[operation], body)}
    known = {field for schema in schemas.values() for field in all_fields(document, schema)}
    assert known - found == set()
    assert ("StreamOptions", "continuous_usage_stats") in found
    assert ABORT in schemas


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        (f"POST {CHAT}", {case.option for case in CHAT_CASES}),
        (f"POST {COMPLETIONS}", {case.option for case in COMPLETION_CASES}),
        (f"POST {EMBEDDINGS}", {case.option for case in EMBEDDING_CASES}),
        (MESSAGES, {case.option for case in MESSAGE_CASES}),
        (COUNT_TOKENS, {*COUNTED, "chat_template"}),
    ],
)
def test_every_field_of_a_body_has_a_case_of_its_own(
    document: dict[str, Any], operation: str, options: set[str]
) -> None:
    name = body_schemas(document)[operation]["$ref"].rpartition("/")[2]
    assert set(document["components"]["schemas"][name]["properties"]) == options
