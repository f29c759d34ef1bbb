"""A server under bodies and bytes that nobody should send: no 5xx, no fault in its log, and no slot that stays taken.

A short run by default; `-m long` runs 20,000 bodies and 2,000 malformed requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from reliability.fuzz_http import fuzz_server, send_bodies, send_raw
from support.server import ServerProcess, wait_until
from support.tiny import write_tiny_checkpoint

SEED = 20
BODIES, RAW = 400, 100
LONG_BODIES, LONG_RAW = 20_000, 2_000
KNOWN = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
SECONDS = 60.0


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fuzz_server(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))) as running:
        yield running


def known_answer(server: ServerProcess) -> Any:
    return httpx.post(f"{server.url}/v1/completions", json=KNOWN, timeout=SECONDS).json()["choices"]


def check_bodies(server: ServerProcess, count: int) -> None:
    before = known_answer(server)
    report = send_bodies(server.port, SEED, range(count))
    print(f"seed {SEED}: {report}")
    assert not report.failures, report
    # Noise that is refused at once would try little.
    assert report.statuses[200] > count / 20
    assert report.statuses[400] > count / 5
    check_sound(server, before)


def check_bytes(server: ServerProcess, count: int) -> None:
    before = known_answer(server)
    report = asyncio.run(send_raw(server.port, SEED, range(count)))
    print(f"seed {SEED}: {report}")
    assert not report.failures, report
    assert {200, 400} <= report.statuses.keys()
    check_sound(server, before)


def check_sound(server: ServerProcess, before: Any) -> None:
    """Nothing runs or waits any more, answers are what they were, and the log tells of no fault."""
    wait_until(lambda: httpx.get(f"{server.url}/load").json()["server_load"] == 0, SECONDS)
    assert known_answer(server) == before
    assert "Traceback" not in server.log


def test_no_body_brings_the_server_down(fuzzed: ServerProcess) -> None:
    check_bodies(fuzzed, BODIES)


def test_no_bytes_bring_the_server_down(fuzzed: ServerProcess) -> None:
    check_bytes(fuzzed, RAW)


@pytest.mark.long
def test_no_body_of_many_brings_the_server_down(fuzzed: ServerProcess) -> None:
    check_bodies(fuzzed, LONG_BODIES)


@pytest.mark.long
def test_no_bytes_of_many_bring_the_server_down(fuzzed: ServerProcess) -> None:
    check_bytes(fuzzed, LONG_RAW)
