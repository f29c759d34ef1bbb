"""Every request has an id and a line of its own in the log, which no client can forge and no prompt gets into."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import httpx
import pytest
from support.chat import ENDLESS, HELLO, metric
from support.guarded import AUTH, MODEL_NAME, ORIGIN, log_events, request_line
from support.server import ServerProcess, wait_until

from fastdeploy_lp.entrypoints.openai.middleware.request_record import _noting, new_record

SECRET = "do-not-tell-anybody"
CHAT = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}


def ask(server: ServerProcess, path: str, body: dict[str, Any], request_id: str) -> httpx.Response:
    headers = {**AUTH, "X-Request-Id": request_id}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_line_tells_its_tokens_and_times(guarded_server: ServerProcess, stream: bool) -> None:
    request_id = f"chat-{stream}"
    body = {**CHAT, "n": 2, "stream": stream, "logits_processors_args": {"logit_bias": {"5": 1.0}}}
    answer = ask(guarded_server, "/v1/chat/completions", body, request_id)
    assert answer.headers["x-request-id"] == request_id
    line = request_line(guarded_server, request_id)
    assert (line["route"], line["method"], line["status"]) == ("/v1/chat/completions", "POST", 200)
    assert line["output_tokens"] == 8
    assert line["prompt_tokens"] > 0
    assert line["processors"] == ["LogitBiasLogitsProcessor"]
    assert line["finish_reasons"] == ["length", "length"]
    assert 0 <= line["queue"] <= line["ttft"] <= line["seconds"]
    assert line["response_id"].startswith("chatcmpl-")
    assert line["level"] == "info"


def test_a_completions_line_counts_all_its_prompts(guarded_server: ServerProcess) -> None:
    body = {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 3, "ignore_eos": True}
    answer = ask(guarded_server, "/v1/completions", body, "two-prompts")
    line = request_line(guarded_server, "two-prompts")
    assert (line["prompt_tokens"], line["output_tokens"], line["processors"]) == (5, 6, [])
    assert line["response_id"] == answer.json()["id"]


def test_an_embeddings_line_tells_what_there_is(guarded_server: ServerProcess) -> None:
    body = {"input": [[5, 6, 7], [8, 9]]}
    answer = ask(guarded_server, "/v1/embeddings", body, "pooled-0")
    again = ask(guarded_server, "/v1/embeddings", {**body, "request_id": "pooled-1"}, "unused")
    line, named = request_line(guarded_server, "pooled-0"), request_line(guarded_server, "pooled-1")
    assert (line["response_id"], named["response_id"]) == (answer.json()["id"], "embd-pooled-1")
    assert again.headers["x-request-id"] == "pooled-1"
    assert (line["prompt_tokens"], line["output_tokens"], line["cached_tokens"]) == (5, 0, 0)
    assert (line["finish_reasons"], line["processors"], line["ttft"]) == (["stop", "stop"], [], None)
    assert 0 <= line["queue"] <= line["seconds"]


def test_embeddings_that_nobody_waits_for_are_told(guarded_server: ServerProcess) -> None:
    """A client that leaves too early has no sequences yet: each attempt stays twice as long, and none is answered."""
    for attempt in range(12):
        headers = {**AUTH, "X-Request-Id": f"gone-pooled-{attempt}"}
        body = {"input": [[index % 500 + 1] * 60 for index in range(100)], "pooling": "mean"}
        os.kill(guarded_server.worker_pid, signal.SIGSTOP)
        try:
            with httpx.Client(base_url=guarded_server.url, headers=headers) as client, pytest.raises(httpx.ReadTimeout):
                client.post("/v1/embeddings", json=body, timeout=httpx.Timeout(60.0, read=0.01 * 2**attempt))
        finally:
            os.kill(guarded_server.worker_pid, signal.SIGCONT)
        line = request_line(guarded_server, f"gone-pooled-{attempt}")
        assert line["status"] == 499
        if "finish_reasons" in line:
            break
    assert len(line["finish_reasons"]) == 100
    assert set(line["finish_reasons"]) <= {"stop", "abort"}
    assert "abort" in line["finish_reasons"]


def test_cached_tokens_are_told(guarded_server: ServerProcess) -> None:
    body = {"prompt": list(range(3, 103)), "max_tokens": 1}
    for request_id in ("cold", "warm"):
        ask(guarded_server, "/v1/completions", body, request_id)
    cold, warm = (request_line(guarded_server, request_id)["cached_tokens"] for request_id in ("cold", "warm"))
    assert cold == 0
    assert warm >= 90


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {**CHAT, "model": "gpt-4"}, 404),
        ("/v1/nothing", {}, 404),
        ("/v1/models", {}, 405),
    ],
)
def test_refusals_have_their_line_too(
    guarded_server: ServerProcess, path: str, body: dict[str, Any], status: int
) -> None:
    request_id = f"refused{path}:{len(body)}"
    answer = ask(guarded_server, path, body, request_id)
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, request_id)
    line = request_line(guarded_server, request_id)
    assert (line["status"], line["path"]) == (status, path)
    assert "output_tokens" not in line


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_is_logged_as_499(guarded_server: ServerProcess, stream: bool) -> None:
    request_id = f"gone-{stream}"
    before = metric_of_499(guarded_server)
    body = {**ENDLESS, "max_tokens": 150, "stream": stream, "n": 4}
    with httpx.Client(base_url=guarded_server.url, headers={**AUTH, "X-Request-Id": request_id}) as client:
        if stream:
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=body, timeout=0.02)
    line = request_line(guarded_server, request_id)
    assert line["status"] == 499
    assert line["finish_reasons"] == ["abort"] * 4
    assert metric_of_499(guarded_server) == before + 1


def metric_of_499(server: ServerProcess) -> float:
    text = httpx.get(server.metrics_url, headers=AUTH).text
    name = 'fastdeploy_lp:http_requests_total{method="POST",route="/v1/chat/completions",status="499"} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


def test_prompts_stay_out_of_the_log(guarded_server: ServerProcess) -> None:
    ask(guarded_server, "/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": SECRET}]}, "secret-1")
    ask(guarded_server, "/v1/completions", {"prompt": SECRET, "max_tokens": 1}, "secret-2")
    ask(guarded_server, "/v1/completions", {"prompt": SECRET, "max_tokens": -1}, "secret-3")
    ask(guarded_server, "/tokenize", {"prompt": SECRET}, "secret-4")
    for number in range(1, 5):
        request_line(guarded_server, f"secret-{number}")
    assert SECRET not in guarded_server.log


def test_probes_are_told_at_the_level_debug(guarded_server: ServerProcess) -> None:
    httpx.get(f"{guarded_server.url}/health", headers={"X-Request-Id": "probe"})
    assert request_line(guarded_server, "probe")["level"] == "debug"


def test_a_path_cannot_forge_a_line(guarded_server: ServerProcess) -> None:
    forged = '%0a{"message":"request","request_id":"forged"}%0d%1b[31m%e2%80%a8'
    with socket.create_connection(("127.0.0.1", guarded_server.port)) as connection:
        lines = [f"GET /{forged} HTTP/1.1", "Host: here", "X-Request-Id: forger", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in AUTH.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 404")
    assert "\n{" in request_line(guarded_server, "forger")["path"]
    assert "forged" not in {event.get("request_id") for event in log_events(guarded_server)}
    assert "\x1b" not in guarded_server.log


def test_an_unfit_id_is_replaced(guarded_server: ServerProcess) -> None:
    answer = httpx.get(f"{guarded_server.url}/ping", headers={"X-Request-Id": "two words"})
    made = answer.headers["x-request-id"]
    assert made.isalnum()
    assert request_line(guarded_server, made)["path"] == "/ping"


def test_preflights_have_an_id_too(guarded_server: ServerProcess) -> None:
    headers = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "X-Request-Id": "preflight"}
    assert httpx.options(f"{guarded_server.url}/v1/models", headers=headers).headers["x-request-id"] == "preflight"
    assert request_line(guarded_server, "preflight")["method"] == "OPTIONS"


def test_the_worker_logs_in_the_same_form(guarded_server: ServerProcess) -> None:
    lines = [line for line in guarded_server.log.splitlines() if line]
    banner = [line for line in lines if not line.startswith("{")]
    assert [line.split(" ")[0] for line in banner] == ["Try", "curl", "curl", "Serving"]
    assert MODEL_NAME in banner[-1]


def test_routes_and_statuses_are_counted(strict_server: ServerProcess) -> None:
    def count(route: str, status: int, method: str = "GET") -> float:
        return metric(strict_server, "http_requests_total", method=method, route=route, status=str(status))

    before = count("/v1/models/{model_id}", 404), count("unknown", 404), count("/v1/models", 405, "other")
    for path in ("/v1/models/a", "/v1/models/b/c", "/nowhere", "/elsewhere"):
        httpx.get(f"{strict_server.url}{path}")
    httpx.request("TRACE", f"{strict_server.url}/v1/models")
    after = count("/v1/models/{model_id}", 404), count("unknown", 404), count("/v1/models", 405, "other")
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 2, 1]


def test_a_token_passes_the_log_without_a_frame_of_its_own() -> None:
    """What the server's `send` gives is handed to the application as it is."""
    sent: list[Any] = []

    def send(message: Any) -> Any:
        sent.append(message)
        return message["type"]

    record = new_record({"headers": [(b"x-request-id", b"an-id")], "method": "GET", "path": "/"})
    note = _noting(record, send)
    start = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
    token = {"type": "http.response.body", "body": b"token", "more_body": True}
    assert note(start) == "http.response.start"
    assert [note(token) for _ in range(3)] == ["http.response.body"] * 3
    assert (record.status, record.answered) == (200, False)
    assert all(each is token for each in sent[1:])
    note({"type": "http.response.body"})
    assert record.answered
    added = [(b"x-request-id", b"an-id"), (b"x-content-type-options", b"nosniff")]
    assert sent[0]["headers"] == [(b"a", b"b"), *added]


def test_a_line_is_there_once(guarded_server: ServerProcess) -> None:
    ask(guarded_server, "/v1/completions", {"prompt": [5], "max_tokens": 1}, "only-once")
    ask(guarded_server, "/v1/completions", {"prompt": [5], "max_tokens": 1}, "behind-it")
    request_line(guarded_server, "behind-it")
    wait_until(lambda: request_line(guarded_server, "only-once"), 5.0)
