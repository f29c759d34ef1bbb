"""What the API tells of the declared processors, how requests choose among them, and what a faulty one does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.chat import (
    HELLO,
    MODEL,
    REQUEST_SECONDS,
    chunks,
    decode,
    metric,
    opened_stream,
    post,
    text_of,
    wait_for_running,
)
from support.server import ServerProcess

FAULTY, ONE_ROW = "RaisesOnBoom", "RaisesInOneRow"
MAX_FAULTS = 2
COUNTERS = ("seconds", "rows", "requests", "faults", "slow_steps", "skipped_greedy", "finishes", "emitted", "rewinds")
SCHEMA_OF_LOGIT_BIAS = {
    "additionalProperties": {"type": "number"},
    "maxProperties": 4096,
    "propertyNames": {"format": "token-id", "pattern": "^(0|[1-9][0-9]*)$"},
    "type": "object",
}

TOKENS = 3
# The light model greedily goes on with token 32991, whose logit is 8.8; that of token 42 is -2.6.
PROMPT = "Hello!"
PLAIN_TOKEN, OTHER_TOKEN = 32991, 42
# Once is too little for the other token to win, twice is enough.
HALF_OF_WHAT_IT_TAKES = {str(OTHER_TOKEN): 7}
FORCE = {str(OTHER_TOKEN): 100}

Body = dict[str, Any]


@pytest.fixture(scope="module")
def aliases(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """One class twice, and a processor that makes the order visible; all arguments are known."""
    specs = ["hot=LogitBiasLogitsProcessor", "cold=LogitBiasLogitsProcessor", "support.served_faults:SetsToZero"]
    with ServerProcess("--logits-processors", *specs, model=str(light_checkpoint)) as running:
        yield running


@pytest.fixture(scope="module")
def faulty_server(light_checkpoint: Path) -> Iterator[ServerProcess]:
    """Two processors that fail when asked to."""
    specs = ["LogitBiasLogitsProcessor", f"support.served_faults:{FAULTY}", f"support.served_faults:{ONE_ROW}"]
    options = ["--logits-processors-max-faults", str(MAX_FAULTS), "--served-model-name", MODEL]
    with ServerProcess("--logits-processors", *specs, *options, model=str(light_checkpoint)) as running:
        yield running


@pytest.fixture
def faulty(faulty_server: ServerProcess) -> ServerProcess:
    """`faulty_server` with nothing in quarantine and no faults held against anybody."""
    for name in (FAULTY, ONE_ROW):
        httpx.post(f"{faulty_server.url}/v1/logits_processors/{name}/reset").raise_for_status()
    return faulty_server


def send(server: ServerProcess, path: str = "completions", *, client: int = 1, **fields: Any) -> httpx.Response:
    """The answer to a completion; `client` is the last part of the loopback address that it is sent from."""
    asked: Body = {"messages": HELLO} if path == "chat/completions" else {"prompt": PROMPT}
    # Sent as bytes: `json=` refuses values such as NaN.
    content = json.dumps({**asked, "temperature": 0, "max_tokens": TOKENS, **fields}).encode()
    headers = {"Content-Type": "application/json"}
    transport = httpx.HTTPTransport(local_address=f"127.0.0.{client}")
    with httpx.Client(transport=transport, timeout=REQUEST_SECONDS) as http:
        return http.post(f"{server.url}/v1/{path}", content=content, headers=headers)


def texts(server: ServerProcess, **fields: Any) -> list[str]:
    answer = send(server, **fields)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def first_token(server: ServerProcess, **fields: Any) -> str:
    (text,) = texts(server, max_tokens=1, **fields)
    return text


def error_of(answer: httpx.Response, status: int) -> Body:
    assert answer.status_code == status, answer.text
    error: Body = answer.json()["error"]
    return error


def cards(server: ServerProcess) -> dict[str, Body]:
    answer = httpx.get(f"{server.url}/v1/logits_processors")
    answer.raise_for_status()
    assert answer.json()["object"] == "list"
    return {card["name"]: card for card in answer.json()["data"]}


# GET /v1/logits_processors


def test_processors_are_listed_in_order_of_execution(aliases: ServerProcess) -> None:
    listed = cards(aliases)
    told = [(card["name"], card["order"], card["dialect"], card["source"], card["spec"]) for card in listed.values()]
    assert told == [
        ("hot", 0, "native", "builtin", "hot=LogitBiasLogitsProcessor"),
        ("cold", 1, "native", "builtin", "cold=LogitBiasLogitsProcessor"),
        ("SetsToZero", 2, "native", "module", "support.served_faults:SetsToZero"),
    ]
    assert all(card["object"] == "logits_processor" for card in listed.values())


def test_a_listed_processor_tells_its_state_and_its_parameters(aliases: ServerProcess) -> None:
    card = cards(aliases)["cold"]
    assert (card["state"], card["last_error"], card["argmax_invariant"]) == ("ok", None, False)
    assert SCHEMA_OF_LOGIT_BIAS in card["parameters"]["properties"]["logit_bias"]["anyOf"]
    assert card["description"].startswith('`{"logit_bias": {token_id: bias}}` adds')
    assert tuple(card["counters"]) == COUNTERS


def test_a_request_level_processor_says_so_and_has_no_schema(faulty: ServerProcess) -> None:
    card = cards(faulty)[ONE_ROW]
    assert (card["dialect"], card["source"], card["parameters"]) == ("request", "module", None)


def test_the_schemas_stand_in_the_openapi_document_too(aliases: ServerProcess, faulty: ServerProcess) -> None:
    for server in (aliases, faulty):
        published = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
        known = {name: card["parameters"] for name, card in cards(server).items() if card["parameters"] is not None}
        found = {key.removeprefix("logits_processors."): published[key] for key in published if "processors." in key}
        assert found == known
    assert ONE_ROW not in found


def test_counters_of_the_processors_in_use_go_up(aliases: ServerProcess) -> None:
    before = cards(aliases)
    assert (
        texts(aliases, n=2, logits_processors={"cold": {"logit_bias": FORCE}}) == [decode(*[OTHER_TOKEN] * TOKENS)] * 2
    )
    after = cards(aliases)
    gained = {name: after["cold"]["counters"][name] - before["cold"]["counters"][name] for name in COUNTERS}
    assert gained.pop("seconds") > 0
    rest = dict.fromkeys(("faults", "slow_steps", "skipped_greedy", "finishes", "emitted", "rewinds"), 0)
    assert gained == {"rows": 2 * TOKENS, "requests": 2, **rest}
    assert after["SetsToZero"]["counters"] == before["SetsToZero"]["counters"]
    assert after["hot"]["counters"]["requests"] == before["hot"]["counters"]["requests"]


def test_the_metrics_have_the_same_counters(aliases: ServerProcess) -> None:
    texts(aliases, logits_processors={"hot": {"logit_bias": FORCE}})
    for name, card in cards(aliases).items():
        told = {key: metric(aliases, f"logits_processor_{key}_total", processor=name) for key in COUNTERS}
        assert told == card["counters"]
        assert metric(aliases, "logits_processor_quarantined", processor=name) == 0
    assert metric(aliases, "logits_processor_rows_total", processor="hot") >= TOKENS


def test_a_reset_of_a_processor_in_service_changes_nothing(aliases: ServerProcess) -> None:
    before = cards(aliases)["hot"]
    answer = httpx.post(f"{aliases.url}/v1/logits_processors/hot/reset")
    assert answer.status_code == 200
    assert answer.json() == before


def test_a_reset_of_an_unknown_name_is_not_found(aliases: ServerProcess) -> None:
    error = error_of(httpx.post(f"{aliases.url}/v1/logits_processors/warm/reset"), 404)
    assert error["code"] == "logits_processor_not_found"
    assert all(word in error["message"] for word in ("'warm'", "hot", "cold", "SetsToZero"))


# How a request chooses


def test_flat_arguments_are_seen_by_every_processor_that_knows_them(aliases: ServerProcess) -> None:
    for field in ("logits_processors_args", "vllm_xargs"):
        assert first_token(aliases, **{field: {"logit_bias": HALF_OF_WHAT_IT_TAKES}}) == decode(OTHER_TOKEN)


def test_openais_own_bias_is_added_once(aliases: ServerProcess) -> None:
    """By the first of the processors that know it, under however many names the builtin is declared."""
    assert first_token(aliases, logit_bias=HALF_OF_WHAT_IT_TAKES) != decode(OTHER_TOKEN)
    assert first_token(aliases, logit_bias=FORCE) == decode(OTHER_TOKEN)


@pytest.mark.parametrize("name", ["hot", "cold"])
def test_only_named_processors_see_their_arguments(aliases: ServerProcess, name: str) -> None:
    params = {"logit_bias": HALF_OF_WHAT_IT_TAKES}
    assert first_token(aliases, logits_processors={name: params}) == decode(PLAIN_TOKEN)
    assert first_token(aliases, logits_processors=[{"name": name, "params": params}]) == decode(PLAIN_TOKEN)


@pytest.mark.parametrize("name", ["hot", "cold"])
def test_a_dict_and_a_list_of_names_do_the_same(aliases: ServerProcess, name: str) -> None:
    forced = [decode(*[OTHER_TOKEN] * TOKENS)]
    assert texts(aliases, logits_processors={name: {"logit_bias": FORCE}}) == forced
    assert texts(aliases, logits_processors=[{"name": name, "params": {"logit_bias": FORCE}}]) == forced


def test_two_aliases_of_one_class_have_arguments_of_their_own(aliases: ServerProcess) -> None:
    chosen = {"hot": {"logit_bias": FORCE}, "cold": {"logit_bias": {str(OTHER_TOKEN): -200, "43": 150}}}
    assert texts(aliases, logits_processors=chosen) == [decode(*[43] * TOKENS)]


def test_a_list_gives_the_order_of_execution(aliases: ServerProcess) -> None:
    bias = {"name": "hot", "params": {"logit_bias": FORCE}}
    zero = {"name": "SetsToZero", "params": {"zero_token": OTHER_TOKEN}}
    assert first_token(aliases, logits_processors=[bias, zero]) == decode(PLAIN_TOKEN)
    assert first_token(aliases, logits_processors=[zero, bias]) == decode(OTHER_TOKEN)


def test_requests_of_different_orders_share_a_batch(aliases: ServerProcess) -> None:
    """Each row goes through the processors in the order of its own request."""
    plain = texts(aliases)
    bias = {"name": "hot", "params": {"logit_bias": FORCE}}
    zero = {"name": "SetsToZero", "params": {"zero_token": OTHER_TOKEN}}
    reversed_body = {"messages": HELLO, "max_tokens": 100, "ignore_eos": True, "temperature": 0}
    with opened_stream(aliases, {**reversed_body, "logits_processors": [zero, bias]}) as payloads:
        assert texts(aliases) == plain
        assert texts(aliases, logits_processors=[bias, zero], max_tokens=1) == [decode(PLAIN_TOKEN)]
        assert text_of(chunks(payloads)) == decode(*[OTHER_TOKEN] * 100)


def test_an_empty_selection_gives_the_plain_answer(aliases: ServerProcess) -> None:
    for nothing in ({}, [], {"hot": {}}, [{"name": "hot"}], [{"name": "hot", "params": {}}], None):
        assert texts(aliases, logits_processors=nothing) == texts(aliases)


def test_every_one_of_n_completions_is_processed(aliases: ServerProcess) -> None:
    forced = decode(*[OTHER_TOKEN] * TOKENS)
    for fields in ({"logit_bias": FORCE}, {"logits_processors": {"hot": {"logit_bias": FORCE}}}):
        assert texts(aliases, n=2, temperature=1, seed=3, **fields) == [forced, forced]


BAD_BIASES: list[tuple[dict[str, Any], str]] = [
    ({"99999999": 1.0}, ".99999999"),
    ({"-1": 1.0}, ".-1"),
    ({"many": 1.0}, ".many"),
    ({"42": "many"}, ".42"),
    ({"42": None}, ".42"),
    ({"42": float("nan")}, ".42"),
    ({"42": float("inf")}, ".42"),
]
FORMS: list[tuple[str, Any]] = [
    ("logit_bias", lambda bias: {"logit_bias": bias}),
    ("logits_processors_args.logit_bias", lambda bias: {"logits_processors_args": {"logit_bias": bias}}),
    ("vllm_xargs.logit_bias", lambda bias: {"vllm_xargs": {"logit_bias": bias}}),
    ("logits_processors.cold.logit_bias", lambda bias: {"logits_processors": {"cold": {"logit_bias": bias}}}),
    (
        "logits_processors.1.params.logit_bias",
        lambda bias: {"logits_processors": [{"name": "hot"}, {"name": "cold", "params": {"logit_bias": bias}}]},
    ),
]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(("prefix", "form"), FORMS, ids=[prefix for prefix, _ in FORMS])
def test_a_wrong_bias_is_refused_with_its_path_in_every_form(
    aliases: ServerProcess, prefix: str, form: Any, path: str
) -> None:
    told = [error_of(send(aliases, path, **form(bias)), 400) for bias, _ in BAD_BIASES]
    assert [error["param"] for error in told] == [prefix + suffix for _, suffix in BAD_BIASES]
    assert all(error["message"].startswith(f"{error['param']}: ") for error in told)
    assert {error["type"] for error in told} == {"invalid_request_error"}


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logits_processors_args": {"nope": 1}}, "logits_processors_args.nope"),
        ({"vllm_xargs": {"nope": 1}}, "vllm_xargs.nope"),
        ({"logits_processors_args": 5}, "logits_processors_args"),
        ({"vllm_xargs": []}, "vllm_xargs"),
        ({"logits_processors": "hot"}, "logits_processors"),
        ({"logits_processors": {"hoot": {}}}, "logits_processors.hoot"),
        ({"logits_processors": {"LogitBiasLogitsProcessor": {}}}, "logits_processors.LogitBiasLogitsProcessor"),
        ({"logits_processors": {"hot": 5}}, "logits_processors.hot"),
        ({"logits_processors": {"hot": []}}, "logits_processors.hot"),
        ({"logits_processors": {"hot": {"bias": 1}}}, "logits_processors.hot.bias"),
        (
            {"logits_processors": {"hot": {}, "SetsToZero": {"logit_bias": {}}}},
            "logits_processors.SetsToZero.logit_bias",
        ),
        ({"logits_processors": [{"name": "hoot"}]}, "logits_processors.0.name"),
        ({"logits_processors": [{"name": "hot"}, {"name": "hot"}]}, "logits_processors.1.name"),
        ({"logits_processors": [{"name": 5}]}, "logits_processors.0.name"),
        ({"logits_processors": [{"params": {}}]}, "logits_processors.0"),
        ({"logits_processors": ["hot"]}, "logits_processors.0"),
        ({"logits_processors": [{"name": "hot", "parms": {}}]}, "logits_processors.0.parms"),
        ({"logits_processors": [{"name": "hot", "params": 5}]}, "logits_processors.0.params"),
        ({"logits_processors": [{"name": "hot", "params": []}]}, "logits_processors.0.params"),
        ({"logits_processors": [{"name": "hot", "params": False}]}, "logits_processors.0.params"),
        ({"logits_processors": [{"name": "hot", "params": {"bias": 1}}]}, "logits_processors.0.params.bias"),
        ({"logits_processors": {"hot": {}}, "logit_bias": {"42": 1}}, "logit_bias"),
        ({"logits_processors": {"hot": {}}, "vllm_xargs": {"logit_bias": {"42": 1}}}, "vllm_xargs"),
        ({"logits_processors": [], "logits_processors_args": {"zero_token": 1}}, "logits_processors_args"),
        ({"logit_bias": {"42": 1}, "vllm_xargs": {"logit_bias": {"42": 1}}}, "logit_bias"),
    ],
)
def test_a_wrong_selection_is_refused_with_its_path(
    aliases: ServerProcess, fields: Body, param: str, path: str
) -> None:
    error = error_of(send(aliases, path, **fields), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_a_name_that_is_nearly_right_gets_a_hint(aliases: ServerProcess) -> None:
    error = error_of(send(aliases, logits_processors={"hoot": {}}), 400)
    assert "; did you mean hot?; declared are " in error["message"]


# A processor that fails


BOOM = {"logits_processors_args": {"boom": 0}}
MID_ANSWER = {"logits_processors_args": {"boom": 2}}


def check_names_the_fault(error: Body) -> None:
    assert error["type"] == "server_error"
    assert error["code"] == "request_failed"
    assert FAULTY in error["message"]
    assert "boom was asked for" in error["message"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_fault_ends_its_request_with_the_processors_name(faulty: ServerProcess, path: str) -> None:
    check_names_the_fault(error_of(send(faulty, path, **MID_ANSWER), 500))
    assert cards(faulty)[FAULTY]["state"] == "ok"
    assert "boom was asked for" in cards(faulty)[FAULTY]["last_error"]
    assert 'raise RuntimeError("boom was asked for")' in faulty.log


def test_a_fault_of_a_named_processor_ends_its_request(faulty: ServerProcess) -> None:
    check_names_the_fault(error_of(send(faulty, logits_processors={FAULTY: {"boom": 1}}), 500))


def test_a_fault_ends_all_of_n_completions(faulty: ServerProcess) -> None:
    check_names_the_fault(error_of(send(faulty, n=3, **MID_ANSWER), 500))
    wait_for_running(faulty, 0)


def test_a_fault_ends_a_chat_stream_with_an_error_event(faulty: ServerProcess) -> None:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 20, **MID_ANSWER}
    with opened_stream(faulty, body) as payloads:
        *parts, last = chunks(payloads)
    check_names_the_fault(last["error"])
    assert text_of(parts)
    assert not any(choice["finish_reason"] for part in parts for choice in part["choices"])


def test_the_openai_client_raises_the_error_of_a_completion_stream(faulty: ServerProcess) -> None:
    with openai.Client(base_url=f"{faulty.url}/v1", api_key="EMPTY", max_retries=0) as client:
        parts = client.completions.create(
            model=MODEL, prompt=PROMPT, temperature=0, max_tokens=20, stream=True, extra_body=MID_ANSWER
        )
        assert next(parts).choices[0].text == decode(PLAIN_TOKEN)
        with pytest.raises(openai.APIError, match=FAULTY):
            list(parts)


def test_a_concurrent_healthy_stream_gives_exactly_its_calm_answer(faulty: ServerProcess) -> None:
    healthy = {"messages": HELLO, "temperature": 0, "max_tokens": 800, "ignore_eos": True}
    calm = post(faulty, healthy).json()["choices"][0]["message"]["content"]
    with opened_stream(faulty, healthy) as payloads:
        parts = [json.loads(next(payloads)) for _ in range(4)]
        assert text_of(parts)
        for client in range(1, MAX_FAULTS + 1):
            check_names_the_fault(error_of(send(faulty, client=client, **MID_ANSWER), 500))
        error_of(send(faulty, **MID_ANSWER), 503)
        # It was there all the time.
        assert metric(faulty, "num_requests_running") == 1
        parts += chunks(payloads)
    assert text_of(parts) == calm
    assert parts[-1]["choices"][0]["finish_reason"] == "length"


def test_repeated_faults_put_a_processor_into_quarantine_until_it_is_reset(faulty: ServerProcess) -> None:
    faults_before = cards(faulty)[FAULTY]["counters"]["faults"]
    for fault in range(1, MAX_FAULTS + 1):
        assert cards(faulty)[FAULTY]["state"] == "ok"
        assert metric(faulty, "logits_processor_quarantined", processor=FAULTY) == 0
        check_names_the_fault(error_of(send(faulty, client=fault, **BOOM), 500))
        assert cards(faulty)[FAULTY]["counters"]["faults"] == faults_before + fault
        assert metric(faulty, "logits_processor_faults_total", processor=FAULTY) == faults_before + fault

    assert cards(faulty)[FAULTY]["state"] == "quarantined"
    assert metric(faulty, "logits_processor_quarantined", processor=FAULTY) == 1
    assert metric(faulty, "logits_processor_quarantined", processor="LogitBiasLogitsProcessor") == 0
    for path in ("completions", "chat/completions"):
        for stream in (False, True):
            error = error_of(send(faulty, path, stream=stream, **BOOM), 503)
            assert (error["type"], error["code"]) == ("server_error", "logits_processor_quarantined")
            assert FAULTY in error["message"]
    error_of(send(faulty, logits_processors={FAULTY: {}}), 503)
    # Whoever does not ask for it is served.
    assert texts(faulty, logit_bias=FORCE) == [decode(*[OTHER_TOKEN] * TOKENS)]
    assert texts(faulty)[0].startswith(decode(PLAIN_TOKEN))
    assert cards(faulty)[FAULTY]["counters"]["faults"] == faults_before + MAX_FAULTS

    card = httpx.post(f"{faulty.url}/v1/logits_processors/{FAULTY}/reset").json()
    assert (card["name"], card["state"]) == (FAULTY, "ok")
    assert metric(faulty, "logits_processor_quarantined", processor=FAULTY) == 0
    check_names_the_fault(error_of(send(faulty, **BOOM), 500))
    assert texts(faulty, logits_processors_args={"boom": TOKENS})[0].startswith(decode(PLAIN_TOKEN))


def test_no_client_puts_a_processor_into_quarantine_for_the_others(faulty: ServerProcess) -> None:
    """However many sets of arguments it has that fail."""
    for boom in range(MAX_FAULTS + 2):
        error_of(send(faulty, logits_processors_args={"boom": -boom}), 500)
    assert cards(faulty)[FAULTY]["state"] == "ok"
    assert texts(faulty, client=2, logits_processors_args={"boom": TOKENS})[0].startswith(decode(PLAIN_TOKEN))


def test_one_request_level_callable_ends_its_own_request_only(faulty: ServerProcess) -> None:
    asked = {"vllm_xargs": {"boom_at": 1}}
    chat = {"messages": HELLO, "temperature": 0, "max_tokens": 300, "ignore_eos": True}
    calm = post(faulty, chat).json()["choices"][0]["message"]["content"]
    # A chat begins with token 1, a completion here with another one.
    healthy = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
    plain = texts(faulty, **healthy)
    with opened_stream(faulty, chat) as payloads:
        assert texts(faulty, **healthy, **asked) == plain
        error = error_of(send(faulty, "chat/completions", **asked), 500)
        assert ONE_ROW in error["message"]
        assert "this row was asked for" in error["message"]
        assert text_of(chunks(payloads)) == calm


def test_when_one_prompt_fails_the_others_of_its_request_are_aborted(faulty: ServerProcess) -> None:
    """Nobody will ever read their answers."""
    body: dict[str, Any] = {"prompt": [[1, 2], [2, 1]], "max_tokens": 2000, "ignore_eos": True}
    before = metric(faulty, "generation_tokens_total")
    error = error_of(send(faulty, **body, vllm_xargs={"boom_at": 2}), 500)
    assert ONE_ROW in error["message"]
    wait_for_running(faulty, 0)
    assert metric(faulty, "generation_tokens_total") - before < body["max_tokens"]
