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
# Those that send or get very much, or wait for an author's code, are for the benchmark itself.
LONG = {
    *("150 unfinished bodies", "paths of 60 KB", "prompt_logprobs of many megabytes", "30 slow chat templates"),
    *(name for name in ATTACKS if "that s" in name),
}
REFUSALS = {400, 408, 413, 414, 429, 431, 503}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("m")
    write_tiny_checkpoint(folder, context=CONTEXT)
    with running_server(argparse.Namespace(model=str(folder))) as running:
        yield running


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in LONG])
def test_the_victim_goes_on(server: Server, name: str) -> None:
    """`measure` raises if the victim's stream or a health check fails."""
    found = measure(server, SECONDS, name)
    assert found.gaps
    assert found.health
    statuses = {None if each == "None" else int(each) for each in found.statuses}
    assert statuses <= {None, 200, *REFUSALS}
