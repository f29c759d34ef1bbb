"""Replicas on Ray Serve; `make test-ray` sets up Ray and runs this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

import pytest
from support.tiny import write_tiny_checkpoint

pytest.importorskip("ray", reason="Ray is not installed; make test-ray installs it in an environment of its own")

from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError
from reliability.ray_cluster import RayCluster
from reliability.ray_serve import CONTEXT, measure_hits, run_crowd

from fastdeploy_lp.entrypoints.ray_serve.ingress import Ingress
from fastdeploy_lp.entrypoints.ray_serve.prefix_router import BLOCK_CHARACTERS, prompt_chain

# Ray's own, at its import and at its end.
pytestmark = pytest.mark.filterwarnings("default")

REQUESTS, TALKS, TURNS = 60, 10, 5
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
PIECE = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
LAST = {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as running:
        yield running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("model"), context=CONTEXT))


def test_a_killed_replica_and_an_update_lose_nothing(cluster: RayCluster, model: str) -> None:
    report = asyncio.run(run_crowd(cluster, model, REQUESTS))
    assert report.problems == []
    assert report.in_flight_at_kill > 0
    assert report.answered + sum(report.clear_errors.values()) == report.requests >= REQUESTS


def test_conversations_find_their_blocks_again(cluster: RayCluster, model: str) -> None:
    rates = {
        router: asyncio.run(measure_hits(cluster, model, router, TALKS, TURNS)).rate for router in ("ray", "prefix")
    }
    assert rates["prefix"] > rates["ray"]


class Scripted:
    """In place of Ray Serve's handle: each call gives what was written for it, and raises what is an exception."""

    def __init__(self, *calls: list[Any]) -> None:
        self._calls = list(calls)
        self.asked = 0

    def options(self, **_: Any) -> Scripted:
        return self

    def remote(self, _: Any) -> Scripted:
        self.asked += 1
        return self

    async def __aiter__(self) -> AsyncIterator[list[MutableMapping[str, Any]]]:
        for each in self._calls.pop(0):
            if isinstance(each, Exception):
                raise each
            yield [each]

    def cancel(self) -> None:
        """Nothing runs."""


def told_by(*calls: list[Any]) -> tuple[int, list[MutableMapping[str, Any]]]:
    """How often a replica was asked, and what the client was sent."""
    handle, sent = Scripted(*calls), []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(Ingress(handle, 1000).serve({"type": "http", "path": "/"}, receive, send))
    return handle.asked, sent


def test_what_a_replica_says_goes_to_the_client() -> None:
    assert told_by([HEAD, PIECE, LAST]) == (1, [HEAD, PIECE, LAST])


@pytest.mark.parametrize("said", [[], [HEAD]])
def test_what_nobody_was_told_of_runs_on_another_replica(said: list[Any]) -> None:
    assert told_by([*said, ActorDiedError()], [HEAD, PIECE, LAST]) == (2, [HEAD, PIECE, LAST])


def test_a_stream_that_had_begun_ends_with_an_error() -> None:
    asked, sent = told_by([HEAD, PIECE, ActorDiedError()])
    assert (asked, sent[:2]) == (1, [HEAD, PIECE])
    (last,) = sent[2:]
    assert b'"code":"replica_lost"' in last["body"]
    assert last["body"].endswith(b"data: [DONE]\n\n")
    assert not last["more_body"]


def test_an_answer_without_an_end_is_no_answer() -> None:
    assert told_by([HEAD], [HEAD, PIECE, LAST]) == (2, [HEAD, PIECE, LAST])


def test_two_replicas_are_enough() -> None:
    asked, (head, body) = told_by([ActorDiedError()], [ActorDiedError()])
    assert (asked, head["status"]) == (2, 503)
    assert b'"code":"replica_lost"' in body["body"]


def test_a_full_queue_is_told() -> None:
    asked, (head, body) = told_by([BackPressureError(num_queued_requests=9, max_queued_requests=9)])
    assert (asked, head["status"]) == (1, 429)
    assert (b"retry-after", b"1") in head["headers"]
    assert b'"code":"rate_limit_exceeded"' in body["body"]


def test_prompts_that_begin_alike_share_names() -> None:
    text = "x" * (2 * BLOCK_CHARACTERS)
    one, other = (prompt_chain(b'{"prompt": "%s"}' % (text + end).encode()) for end in ("a" * 64, "b" * 64))
    assert one[:2] == other[:2]
    assert one[2] != other[2]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"prompt": null}'])
def test_bodies_without_a_prompt_have_no_names(body: bytes) -> None:
    assert prompt_chain(body) == []
