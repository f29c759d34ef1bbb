"""Traces and shadows over HTTP: in plain answers and in streams, with many choices, within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import metric
from support.server import ServerProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BIAS, SECOND = "LogitBiasLogitsProcessor", "second"
LIMIT = 40
TOKEN = 300
FORCED = {"logit_bias": {str(TOKEN): 1000.0}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
    COMPLETIONS: {"prompt": "the dog"},
}
RANDOM = {"temperature": 1.5, "seed": 3, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}
TRACED = {**RANDOM, "logits_processors_trace": {"top_k": 3}, "logits_processors_args": {"logit_bias": {"7": 2.0}}}


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    """Two biases, of which the second always runs in shadow."""
    options = ["--logits-processors", BIAS, f"{SECOND}={BIAS}", "--shadow", SECOND, "--max-trace-tokens", str(LIMIT)]
    with ServerProcess(*options, model=str(tiny_checkpoint)) as running:
        yield running


def ask(server: ServerProcess, route: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}{route}", json=BODIES[route] | fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def choices(server: ServerProcess, route: str, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(server, route, **fields)["choices"]
    return found


def streamed(server: ServerProcess, route: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of all chunks, in the order in which they came."""
    body = BODIES[route] | fields | {"stream": True}
    with httpx.stream("POST", f"{server.url}{route}", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]


def refused(server: ServerProcess, route: str, **fields: Any) -> tuple[str, str]:
    """Which field is refused, and what is said of it."""
    answer = httpx.post(f"{server.url}{route}", json=BODIES[route] | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def timeless(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same without what the clock says."""
    return [
        each
        | {"stages": [{name: value for name, value in stage.items() if name != "seconds"} for stage in each["stages"]]}
        for each in trace
    ]


@pytest.mark.parametrize("route", BODIES)
def test_each_token_comes_with_its_stages(server: ServerProcess, route: str) -> None:
    (choice,) = choices(server, route, **TRACED)
    trace = choice["logits_processors_trace"]
    assert [each["token_id"] for each in trace] == choice["token_ids"]
    for each in trace:
        assert bytes(each["bytes"]).decode(errors="replace") == each["token"]
        assert [stage["name"] for stage in each["stages"]] == ["raw", BIAS, "final"]
        assert [stage["kind"] for stage in each["stages"]] == ["model", "processor", "sampling"]
        for stage in each["stages"]:
            assert stage["sampled"]["token_id"] == each["token_id"]
            assert len(stage["top"]) == 3
            ranked = [entry["probability"] for entry in stage["top"]]
            assert ranked == sorted(ranked, reverse=True)
            assert [entry["rank"] for entry in stage["top"]] == [1, 2, 3]
            assert sum(ranked) <= 1 + 1e-9
        raw, biased, _ = each["stages"]
        gained = biased["sampled"]["logit"] - raw["sampled"]["logit"]
        assert gained == pytest.approx(2.0 if each["token_id"] == 7 else 0.0, abs=1e-5)
        # Twice the bias, which would make other tokens of some.
        shadow = each["shadows"][SECOND]
        assert shadow["changed"] == (shadow["token_id"] != each["token_id"])
        assert not shadow["failed"]


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"stop": ["zzz"]}], ids=str)
def test_a_stream_tells_of_each_token_where_it_comes(server: ServerProcess, route: str, fields: dict[str, Any]) -> None:
    # Tokens that are whole characters, so that each brings a piece of text.
    fields = TRACED | {"allowed_token_ids": list(range(68, 94))} | fields
    plain = choices(server, route, **fields)
    parts = streamed(server, route, **fields)
    for part in parts:
        assert len(part.get("logits_processors_trace") or []) == len(part.get("token_ids") or [])
    for choice in plain:
        own = [part for part in parts if part["index"] == choice["index"]]
        trace = [each for part in own for each in part.get("logits_processors_trace") or []]
        assert timeless(trace) == timeless(choice["logits_processors_trace"])
        # Counts are whole with the last piece, and stand nowhere else.
        counted = [part["logits_processors_shadow"] for part in own if "logits_processors_shadow" in part]
        assert counted == [choice["logits_processors_shadow"]]
        assert own[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("route", BODIES)
def test_a_trace_changes_nothing(server: ServerProcess, route: str) -> None:
    (traced,) = choices(server, route, **TRACED)
    (plain,) = choices(server, route, **TRACED | {"logits_processors_trace": False})
    assert "logits_processors_trace" not in plain
    assert plain["token_ids"] == traced["token_ids"]


def test_the_best_candidates_bring_their_own_traces(server: ServerProcess) -> None:
    found = choices(server, COMPLETIONS, **TRACED, n=2, best_of=4)
    for choice in found:
        assert [each["token_id"] for each in choice["logits_processors_trace"]] == choice["token_ids"]
    assert found[0]["token_ids"] != found[1]["token_ids"]


def test_a_prompt_that_is_only_echoed_has_nothing_to_trace(server: ServerProcess) -> None:
    (choice,) = choices(server, COMPLETIONS, echo=True, max_tokens=0, logits_processors_trace=True)
    assert choice["logits_processors_trace"] == []
    assert "logits_processors_shadow" not in choice


def test_a_token_that_is_ruled_out_has_no_logit(server: ServerProcess) -> None:
    (choice,) = choices(
        server, COMPLETIONS, max_tokens=1, temperature=0, allowed_token_ids=[TOKEN], logits_processors_trace=True
    )
    (token,) = choice["logits_processors_trace"]
    raw, penalties, final = token["stages"]
    assert [raw["name"], penalties["name"], final["name"]] == ["raw", "penalties", "final"]
    assert len(raw["top"]) == 8
    for stage in (penalties, final):
        assert [(entry["token_id"], entry["probability"]) for entry in stage["top"]] == [(TOKEN, 1.0)]
        assert stage["entropy"] == pytest.approx(0, abs=1e-9)
    assert penalties["flipped"]
    assert not final["flipped"]
    biased = choices(
        server,
        COMPLETIONS,
        max_tokens=1,
        temperature=1,
        seed=1,
        logits_processors_trace=True,
        logit_bias={str(TOKEN): 1000},
    )
    assert biased[0]["logits_processors_trace"][0]["stages"][1]["mass_moved"] > 0.9


# Bounds


def test_tokens_beyond_what_is_asked_for_are_not_traced(server: ServerProcess) -> None:
    for fields, expected in (
        ({"max_tokens": 5, "logits_processors_trace": {"max_tokens": 2}}, 2),
        ({"max_tokens": 3, "logits_processors_trace": {"max_tokens": LIMIT}}, 3),
        # An open end is no reason to refuse a request; the server's bound counts.
        ({"logits_processors_trace": True}, LIMIT),
    ):
        (choice,) = choices(server, CHAT, ignore_eos=True, return_token_ids=True, **fields)
        traced = [each["token_id"] for each in choice["logits_processors_trace"]]
        assert traced == choice["token_ids"][:expected]
        assert len(traced) == expected


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (CHAT, {"logits_processors_trace": {"top_k": 21}}, "logits_processors_trace.top_k"),
        (CHAT, {"logits_processors_trace": {"top_k": 0}}, "logits_processors_trace.top_k"),
        (CHAT, {"logits_processors_trace": {"top_k": "8"}}, "logits_processors_trace.top_k"),
        (CHAT, {"logits_processors_trace": {"max_tokens": 0}}, "logits_processors_trace.max_tokens"),
        (CHAT, {"logits_processors_trace": {"depth": 1}}, "logits_processors_trace.depth"),
        (CHAT, {"logits_processors_trace": "yes"}, "logits_processors_trace"),
        (CHAT, {"logits_processors_trace": {"max_tokens": LIMIT + 1}}, "logits_processors_trace.max_tokens"),
        (CHAT, {"logits_processors_trace": True, "max_tokens": LIMIT + 1}, "logits_processors_trace.max_tokens"),
        (CHAT, {"logits_processors_trace": True, "max_tokens": 21, "n": 2}, "logits_processors_trace.max_tokens"),
        (CHAT, {"logits_processors_trace": True, "n": LIMIT + 1}, "logits_processors_trace.max_tokens"),
        (
            COMPLETIONS,
            {"logits_processors_trace": True, "max_tokens": 21, "prompt": ["one", "two"]},
            "logits_processors_trace.max_tokens",
        ),
        (CHAT, {"logits_processors_shadow": [BIAS, "third"]}, "logits_processors_shadow.1"),
        (CHAT, {"logits_processors_shadow": [5]}, "logits_processors_shadow.0"),
        (CHAT, {"logits_processors_shadow": [BIAS], "logits_processors": {SECOND: {}}}, "logits_processors_shadow.0"),
        (CHAT, {"logits_processors": [{"name": BIAS, "shadow": "yes"}]}, "logits_processors.0.shadow"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(
    server: ServerProcess, route: str, fields: dict[str, Any], param: str
) -> None:
    found, message = refused(server, route, **fields)
    assert found == param
    assert message.startswith(f"{param}: ")


def test_the_bound_is_told(server: ServerProcess) -> None:
    _, message = refused(server, CHAT, logits_processors_trace=True, max_tokens=LIMIT + 1)
    assert f"this server traces {LIMIT} of a request (--max-trace-tokens)" in message


# Shadows


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {"logits_processors": [{"name": BIAS, "params": FORCED, "shadow": True}]},
        {"logits_processors": {BIAS: FORCED}, "logits_processors_shadow": [BIAS]},
        {"logits_processors_args": FORCED, "logits_processors_shadow": [BIAS, SECOND]},
        {"logit_bias": FORCED["logit_bias"], "logits_processors_shadow": [BIAS]},
    ],
    ids=str,
)
def test_a_processor_in_shadow_is_counted_and_changes_nothing(
    server: ServerProcess, route: str, fields: dict[str, Any]
) -> None:
    greedy = {"max_tokens": 4, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    (plain,) = choices(server, route, **greedy)
    (choice,) = choices(server, route, **greedy, **fields)
    assert choice["token_ids"] == plain["token_ids"]
    assert TOKEN not in choice["token_ids"]
    counts = {"tokens": 4, "changed": 4, "faults": 0}
    # The operator's own runs for every request that would use it.
    named = "logits_processors" in fields
    assert choice["logits_processors_shadow"] == ({BIAS: counts} if named else {BIAS: counts, SECOND: counts})


def test_what_the_operator_put_into_shadow_never_reaches_an_answer(server: ServerProcess) -> None:
    before = {name: metric(server, f"logits_processor_shadow_{name}_total", processor=SECOND) for name in COUNTED}
    greedy = {"max_tokens": 4, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    (choice,) = choices(server, CHAT, **greedy, logits_processors={SECOND: FORCED})
    assert TOKEN not in choice["token_ids"]
    assert choice["logits_processors_shadow"] == {SECOND: {"tokens": 4, "changed": 4, "faults": 0}}
    after = {name: metric(server, f"logits_processor_shadow_{name}_total", processor=SECOND) for name in COUNTED}
    assert {name: after[name] - before[name] for name in COUNTED} == {
        "tokens": 4,
        "changed": 4,
        "faults": 0,
        "requests": 1,
    }
    other, card = httpx.get(f"{server.url}/v1/logits_processors").json()["data"]
    assert (other["always_in_shadow"], card["name"], card["always_in_shadow"]) == (False, SECOND, True)
    assert (card["argmax_invariant"], card["counters"]["requests"], card["shadow"]["state"]) == (False, 0, "ok")
    assert {name: card["shadow"][name] for name in COUNTED} == after


COUNTED = ("tokens", "changed", "faults", "requests")


def test_bodies_are_described(server: ServerProcess) -> None:
    schemas = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    for name in ("ChatChoice", "ChatChunkChoice", "TextChoice"):
        fields = schemas[name]["properties"]
        assert {"logits_processors_trace", "logits_processors_shadow"} <= fields.keys()
    assert schemas["TraceStageBody"]["required"][:4] == ["name", "kind", "status", "seconds"]
