"""Servers under bodies and bytes that nobody should send: no 5xx, no fault in their log, and no slot that stays taken.

A short run by default; `-m long` runs 100,000 bodies and 2,000 malformed requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from reliability.fuzz_http import CONFIGURATIONS, fuzz_server, send_bodies, send_raw
from reliability.hostile_bodies import KEYS
from support.server import START_SECONDS, ServerProcess, health, wait_until
from support.tiny import write_tiny_checkpoint

SEED = 20
BODIES, RAW = 100, 100
LONG_BODIES, LONG_RAW = 34_000, 2_000
KNOWN = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
HEADERS = {"Authorization": f"Bearer {KEYS[0]}"}
SECONDS = 60.0
Servers = dict[str, ServerProcess]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One of each configuration, started side by side."""
    checkpoint = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with ExitStack() as stack:
        servers = {}
        for name in CONFIGURATIONS:
            servers[name] = fuzz_server(checkpoint, name).launch()
            stack.callback(servers[name].close)
        for server in servers.values():
            wait_until(lambda: health(server.url) == 200, START_SECONDS, lambda: server.log)  # noqa: B023
        yield servers


def known_answer(server: ServerProcess) -> Any:
    answer = httpx.post(f"{server.url}/v1/completions", json=KNOWN, headers=HEADERS, timeout=SECONDS)
    return answer.json()["choices"]


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

    def load() -> int:
        found: int = httpx.get(f"{server.url}/load", headers=HEADERS).json()["server_load"]
        return found

    wait_until(lambda: load() == 0, SECONDS)
    assert known_answer(server) == before
    assert "Traceback" not in server.log


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_no_body_brings_the_server_down(fuzzed: Servers, configuration: str) -> None:
    check_bodies(fuzzed[configuration], BODIES)


def test_no_bytes_bring_the_server_down(fuzzed: Servers) -> None:
    check_bytes(fuzzed["plain"], RAW)


@pytest.mark.long
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("count", [LONG_BODIES])
def test_no_body_of_many_brings_the_server_down(fuzzed: Servers, configuration: str, count: int) -> None:
    check_bodies(fuzzed[configuration], count)


@pytest.mark.long
def test_no_bytes_of_many_bring_the_server_down(fuzzed: Servers) -> None:
    check_bytes(fuzzed["plain"], LONG_RAW)
