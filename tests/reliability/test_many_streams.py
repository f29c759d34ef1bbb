"""A thousand streams over eight slots: all served or refused, two keys alike, and memory given back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from reliability.many_streams import send_crowd
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

SLOTS, WAITING = 8, 892
KEYS = ("busy", "quiet")
MAX_GROWTH_MB = 45.0


@pytest.fixture(scope="module")
def fair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two keys that take turns for few slots."""
    folder: Path = tmp_path_factory.mktemp("f")
    write_tiny_checkpoint(folder)
    sizes = ["--max-num-seqs", str(SLOTS), "--max-waiting-requests", str(WAITING)]
    keys = [option for key in KEYS for option in ("--api-key", key)]
    with ServerProcess(*sizes, *keys, "--fair-queue", "--log-level", "warning", model=str(folder)) as running:
        yield running


def test_a_thousand_streams_are_served_or_refused_and_keys_share_alike(fair_server: ServerProcess) -> None:
    """One key asks for nine times as much, and first; what the other asks for is served as fast as if it did not."""
    asyncio.run(send_crowd(fair_server, {"busy": 150, "quiet": 150}))
    crowd = asyncio.run(send_crowd(fair_server, {"busy": 860, "quiet": 140}))
    assert crowd.problems == []
    assert len(crowd.served) + sum(crowd.refused.values()) == 1000
    assert crowd.refused["busy"] > 0
    # The room that one key may take ends before the last of it.
    assert crowd.refused.get("quiet", 0) < 140 / 2
    assert abs(crowd.share("quiet") - 0.5) <= 0.05
    assert max(crowd.rss_mb) - crowd.rss_mb[0] < MAX_GROWTH_MB
