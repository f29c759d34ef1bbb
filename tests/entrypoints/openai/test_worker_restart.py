"""A worker that ends is replaced: requests run again and answer as they would have, but those that ended it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import HELLO, chat_url, chunks, metric, opened_stream, post, text_of, wait_for_running, wait_for_text
from support.errors import check_error
from support.processes import process_exists
from support.server import ServerProcess, health, wait_until
from support.supervised import LONG, kill_worker, supervised_server, wait_for_new_worker

SLOTS = 4
STEP_TIMEOUT = 2.0
ENDED_SECONDS = 60.0
SEEDED: dict[str, Any] = {"messages": HELLO, "max_tokens": 1000, "ignore_eos": True, "temperature": 1, "seed": 11}
BESIDE: dict[str, Any] = {**SEEDED, "max_tokens": 300, "seed": 13}
SHORT: dict[str, Any] = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
BOOM = {**SHORT, "logits_processors_args": {"boom": 1}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Restarts its worker however often it ends, and takes it for hung soon."""
    options = ["--logits-processors", "support.deadly:Deadly", "support.served_faults:RaisesOnBoom"]
    options += ["--logits-processors-time-budget", "0", "--logits-processors-max-faults", "1"]
    options += ["--max-worker-restarts", "100", "--step-timeout", str(STEP_TIMEOUT)]
    with supervised_server(tmp_path_factory.mktemp("s"), *options) as running:
        yield running


@dataclass
class Seen:
    """What clients saw of the death of a worker, in their order; `states` is from when the stream had been told."""

    calm: dict[str, Any]
    plain: httpx.Response
    waiting: httpx.Response
    embedding: httpx.Response
    came_later: httpx.Response
    stream: list[dict[str, Any]]
    fresh_stream: list[dict[str, Any]]
    states: dict[str, int]
    old: int
    in_quarantine: str
    refused: httpx.Response


@pytest.fixture(scope="module")
def seen(server: ServerProcess) -> Seen:
    """Kills the worker while a stream and a plain request run, others wait, and a processor is in quarantine."""
    calm = post(server, SEEDED).json()
    check_error(post(server, BOOM), 500)
    embedding = {"input": "the quick brown fox"}
    with ThreadPoolExecutor(8) as pool:
        with ExitStack() as opened:
            stream = opened.enter_context(opened_stream(server, SEEDED))
            leaving = ExitStack()
            opened.push(leaving)
            others = [leaving.enter_context(opened_stream(server, SEEDED)) for _ in range(SLOTS - 2)]
            for each in (stream, *others):
                wait_for_text(each)
            plain = pool.submit(post, server, SEEDED)
            wait_for_running(server, SLOTS)
            waiting = pool.submit(post, server, SEEDED)
            fresh = pool.submit(read_stream, server, SEEDED)
            vector = pool.submit(httpx.post, f"{server.url}/v1/embeddings", json=embedding, timeout=600)
            wait_until(lambda: metric(server, "num_requests_waiting") == 3, 30)
            old = kill_worker(server)
            # They held the slots; their answers would be computed for nobody.
            leaving.close()
            wait_until(lambda: health(server.url) == 503, 30)
            states = {
                path: httpx.get(f"{server.url}{path}").status_code
                for path in ("/health", "/health/ready", "/health/live", "/v1/models")
            }
            later = pool.submit(post, server, SHORT)
            rest = chunks(stream)
        wait_for_new_worker(server, old)
        answers = [each.result(600) for each in (plain, waiting, vector, later)]
        state, refused = cards(server)["RaisesOnBoom"]["state"], post(server, BOOM)
        return Seen(calm, *answers, rest, fresh.result(600), states, old, state, refused)


def read_stream(server: ServerProcess, body: dict[str, Any]) -> list[dict[str, Any]]:
    with opened_stream(server, body) as payloads:
        return chunks(payloads)


def content_of(answer: dict[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def test_a_stream_that_had_begun_goes_on_where_it_was(seen: Seen) -> None:
    """Its tokens are computed again, and those that its client has are not sent again."""
    calm, rest = content_of(seen.calm), text_of(seen.stream)
    assert calm.endswith(rest)
    assert 0 < len(rest) < len(calm)
    assert seen.stream[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("which", ["plain", "waiting"])
def test_a_plain_request_runs_again_and_has_the_same_answer(seen: Seen, which: str) -> None:
    answer = getattr(seen, which)
    assert answer.status_code == 200
    assert content_of(answer.json()) == content_of(seen.calm)
    assert answer.json()["usage"]["completion_tokens"] == seen.calm["usage"]["completion_tokens"]


def test_a_stream_without_a_token_runs_again_and_has_the_same_answer(seen: Seen) -> None:
    assert text_of(seen.fresh_stream) == content_of(seen.calm)


def test_embeddings_run_again(seen: Seen, server: ServerProcess) -> None:
    again = httpx.post(f"{server.url}/v1/embeddings", json={"input": "the quick brown fox"}).json()
    assert seen.embedding.json()["data"] == again["data"]


def test_requests_that_come_meanwhile_wait(seen: Seen) -> None:
    assert seen.came_later.status_code == 200


def test_it_is_not_ready_meanwhile_but_alive(seen: Seen) -> None:
    assert seen.states == {"/health": 503, "/health/ready": 503, "/health/live": 200, "/v1/models": 200}


def test_restarts_and_replays_are_counted(seen: Seen, server: ServerProcess) -> None:
    assert metric(server, "worker_restarts_total") >= 1
    assert metric(server, "request_replays_total") >= 4
    assert metric(server, "request_lost_total") == 0


def test_nothing_is_left_of_the_old_worker(seen: Seen, server: ServerProcess) -> None:
    wait_for_running(server, 0)
    assert metric(server, "num_requests_waiting") == 0
    assert metric(server, "kv_cache_blocks_used") == 0
    # That of the processor that failed before.
    assert server.log.count("Traceback") == 1


@pytest.fixture(scope="module")
def calm_beside(server: ServerProcess) -> str:
    """What `BESIDE` is answered with while nothing happens."""
    return content_of(post(server, BESIDE).json())


# A fault of memory ends it in the test after this one.
@pytest.mark.parametrize(("deadly", "word"), [("exit", "status 7"), ("hang", "step_timeout")])
def test_a_processor_that_ends_the_worker_is_named_and_out_of_service(
    server: ServerProcess, calm_beside: str, deadly: str, word: str
) -> None:
    """Its requests end, never run again, and everybody else's have the answers they would have had."""
    restarts = metric(server, "worker_restarts_total")
    poison = {**SHORT, "logits_processors_args": {"deadly": deadly, "deadly_at": 2}}
    with ThreadPoolExecutor(8) as pool:
        bystanders = [pool.submit(post, server, BESIDE) for _ in range(2)]
        streamed = pool.submit(read_stream, server, BESIDE)
        wait_for_running(server, 3)
        error = check_error(post(server, poison), 500)
        assert "logits processor Deadly ended the worker" in error["message"]
        assert word in error["message"]
        assert [content_of(each.result(600).json()) for each in bystanders] == [calm_beside] * 2
        assert text_of(streamed.result(600)) == calm_beside
    assert cards(server)["Deadly"]["state"] == "quarantined"
    assert check_error(post(server, poison), 503)["code"] == "logits_processor_quarantined"
    wait_until(lambda: metric(server, "worker_restarts_total") == restarts + 1, 60)
    assert httpx.post(f"{server.url}/v1/logits_processors/Deadly/reset").json()["state"] == "ok"
    harmless = {**SHORT, "logits_processors_args": {"deadly_at": 1}}
    assert post(server, harmless).status_code == 200


def test_those_who_waited_behind_a_deadly_request_have_their_answers(server: ServerProcess) -> None:
    body = {**SEEDED, "max_tokens": 100}
    calm = content_of(post(server, body).json())
    poison = {**SHORT, "n": SLOTS, "logits_processors_args": {"deadly": "segfault", "deadly_at": 2}}
    with ThreadPoolExecutor(4) as pool:
        deadly = pool.submit(post, server, poison)
        wait_until(lambda: health(server.url) == 503, 60)
        behind = [pool.submit(post, server, body) for _ in range(3)]
        message = check_error(deadly.result(600), 500)["message"]
        assert re.search("logits processor Deadly ended the worker.*SIGSEGV", message)
        # While there is no worker.
        assert cards(server)["Deadly"]["state"] == "quarantined"
        assert httpx.post(f"{server.url}/v1/logits_processors/Deadly/reset").json()["state"] == "ok"
        assert [content_of(each.result(600).json()) for each in behind] == [calm] * 3
    assert cards(server)["Deadly"]["state"] == "ok"
    assert post(server, {**SHORT, "logits_processors_args": {"deadly_at": 1}}).status_code == 200


def test_a_worker_that_is_stopped_is_ended_and_replaced(server: ServerProcess, seen: Seen) -> None:
    with opened_stream(server, SEEDED) as payloads:
        wait_for_text(payloads)
        old = kill_worker(server, signal.SIGSTOP)
        assert content_of(seen.calm).endswith(text_of(chunks(payloads)))
    assert "hung" in server.log
    wait_for_new_worker(server, old)
    assert not process_exists(old)


def test_a_quarantine_outlasts_the_worker(seen: Seen, server: ServerProcess) -> None:
    """Until an operator lifts it."""
    assert seen.in_quarantine == "quarantined"
    assert check_error(seen.refused, 503)["code"] == "logits_processor_quarantined"
    assert httpx.post(f"{server.url}/v1/logits_processors/RaisesOnBoom/reset").json()["state"] == "ok"
    check_error(post(server, BOOM), 500)


@pytest.fixture(autouse=True)
def nothing_in_quarantine(server: ServerProcess) -> None:
    for name in ("Deadly", "RaisesOnBoom"):
        httpx.post(f"{server.url}/v1/logits_processors/{name}/reset")


def cards(server: ServerProcess) -> dict[str, Any]:
    """What the server says of its processors, by name."""
    data = httpx.get(f"{server.url}/v1/logits_processors").json()["data"]
    return {card["name"]: card for card in data}


def test_requests_of_clients_that_left_do_not_run_again(server: ServerProcess) -> None:
    wait_for_running(server, 0)
    with httpx.Client(timeout=0.5) as client, pytest.raises(httpx.ReadTimeout):
        client.post(chat_url(server), json=LONG)
    with ThreadPoolExecutor(1) as pool:
        hurried = pool.submit(post, server, {**LONG, "timeout": 1.0})
        wait_for_running(server, 1)
        old = kill_worker(server)
        assert hurried.result(600).status_code == 408
    wait_for_new_worker(server, old)
    wait_for_running(server, 0)


def test_files_of_dead_workers_are_gone(server: ServerProcess, seen: Seen) -> None:
    new = server.worker_pid
    assert new != seen.old
    temporary = Path(server.environment["TMPDIR"])
    assert list(temporary.glob("fastdeploy_lp-*")) == []
    assert [name for name in os.listdir("/dev/shm") if str(seen.old) in name] == []


def test_a_worker_that_cannot_start_again_ends_the_server(server: ServerProcess) -> None:
    """Last: three times in a row, and what each of them said is in the log."""
    temporary = Path(server.environment["TMPDIR"])
    (temporary.parent / "c" / "model.safetensors").unlink()
    last = kill_worker(server)
    assert server.process is not None
    assert server.process.wait(ENDED_SECONDS) == 1
    (line,) = [line for line in server.log.splitlines() if line.startswith("error: ")]
    assert "safetensors" in line
    assert server.log.count("the worker could not be started again") == 3
    assert list(temporary.glob("fastdeploy_lp-*")) == []
    assert [name for name in os.listdir("/dev/shm") if str(last) in name] == []
