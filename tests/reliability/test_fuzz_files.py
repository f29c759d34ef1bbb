"""Models that are nearly right, through the whole loader: refused in one line or served, and no process ends of them.

A short run by default; `-m long` runs 10,000 models of each kind.
"""

from __future__ import annotations

import pytest
from reliability.damaged_files import KINDS
from reliability.fuzz_files import REFUSED, SERVED, LoadReport, load_damaged

SEED = 20
COUNT, LONG_COUNT = 40, 10_000


@pytest.fixture(scope="module")
def reports() -> dict[str, LoadReport]:
    """By kind."""
    return load_damaged(KINDS, SEED, range(COUNT))


def check(report: LoadReport, count: int) -> None:
    assert not report.failures, report
    assert report.count(REFUSED) + report.count(SERVED) == count
    # Damage that always or never shows would try little.
    assert report.count(REFUSED) > count / 20
    assert report.count(SERVED) > count / 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_model_is_refused_in_one_line_or_served(kind: str, reports: dict[str, LoadReport]) -> None:
    check(reports[kind], COUNT)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [LONG_COUNT])
def test_many_damaged_models_are_refused_in_one_line_or_served(kind: str, count: int) -> None:
    check(load_damaged([kind], SEED, range(count))[kind], count)
