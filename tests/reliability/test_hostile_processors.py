"""A short run beside hostile processors, and the long one with those for torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from reliability.hostile_processors import Report, run_hostile


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a unix socket's path has little room."""
    return tmp_path_factory.mktemp("h")


def check(report: Report, *, deaths: int) -> None:
    """Every promise is kept, and everything that was to happen has happened."""
    assert report.problems == []
    assert report.mismatches == []
    assert report.wrong_errors == []
    assert report.banned == 0
    assert report.healthy["right"] > 0
    assert report.metrics["worker_restarts_total"] >= deaths
    assert report.ended_worker >= report.metrics["worker_restarts_total"]
    assert report.preemptions > 0


def test_hostile_processors_harm_only_requests_that_use_them(folder: Path) -> None:
    report = run_hostile(folder, 60, seed=5, num_bodies=8, slow=2, with_torch=False)
    check(report, deaths=2)


@pytest.mark.long
def test_a_thousand_requests_beside_hostile_processors(folder: Path) -> None:
    report = run_hostile(folder, 1000, seed=4)
    print(report)
    check(report, deaths=30)
