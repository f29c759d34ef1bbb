"""A victim's stream and health checks go on beside every attack of the benchmark that takes a moment only."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from attacks import ATTACKS
from support.tiny import write_tiny_checkpoint
from victim import Server, measure, running_server

SECONDS = 0.3
CONTEXT = 2200
# One of each kind: bytes without end, connections, prompts; the program's smoke run has a large body. Those of others
# are refused or bounded in test_request_limits, test_heavy_bodies, test_request_head and test_held_code; grammars and
# orders of processors that take long hold up nobody in test_grammar_checker, worker/test_guided_decoding and
# test_preparing.
SHORT = {
    "headers without end",
    "1,500 idle connections to the metrics",
    "embeddings",
}
# Those that send or get very much, or wait for an author's code, are for the benchmark itself.
LEFT_OUT = {
    *("150 unfinished bodies", "paths of 60 KB", "prompt_logprobs of many megabytes", "30 slow chat templates"),
    *(name for name in ATTACKS if "that s" in name),
}
TRIED = [
    name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in ATTACKS if name not in LEFT_OUT
]
# A heavy body takes the worker for seconds, as each of those that the attack sends with it.
BODIES = 1
REFUSALS = {400, 408, 413, 414, 429, 431, 503}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("m")
    write_tiny_checkpoint(folder, context=CONTEXT)
    with running_server(argparse.Namespace(model=str(folder))) as running:
        yield running


@pytest.mark.parametrize("name", TRIED)
def test_the_victim_goes_on(server: Server, name: str) -> None:
    """`measure` raises if the victim's stream or a health check fails."""
    found = measure(server, SECONDS, name, BODIES if name in SHORT else None)
    assert found.gaps
    assert found.health
    statuses = {None if each == "None" else int(each) for each in found.statuses}
    assert statuses <= {None, 200, *REFUSALS}
