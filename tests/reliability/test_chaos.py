"""A short chaos run, and the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from reliability.chaos import Report, run_chaos
from reliability.chaos_requests import Kind


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a unix socket's path has little room."""
    return tmp_path_factory.mktemp("c")


def check(report: Report) -> None:
    """Nothing is wrong, and everything that was to happen has happened."""
    assert report.problems == []
    assert report.kills
    assert all(report.ends[kind.value] for kind in Kind)
    assert report.ends[Kind.STREAM.value]["right answer"] > 0
    assert report.ends[Kind.PLAIN.value]["right answer"] > 0
    assert report.metrics["worker_restarts"] >= len(report.kills)


def test_a_moment_of_chaos_loses_nothing(folder: Path) -> None:
    check(run_chaos(folder, seconds=6.0, seed=1, kill_every=2.0, num_bodies=8))


@pytest.mark.long
def test_a_quarter_of_an_hour_of_chaos_loses_nothing(folder: Path) -> None:
    report = run_chaos(folder, seconds=900.0, seed=2, kill_every=12.0)
    # How quick it was is the machine's affair, too: the program judges it by its status.
    print(*report.slow, sep="\n")
    check(report)
    assert report.metrics["stream_stalled"] > 0
