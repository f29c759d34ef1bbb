"""The pytest plugin of the package: the fixture `processor_checks`, which costs nothing where no test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from fastdeploy_lp.logits_processor.testing import CheckReport


class ProcessorChecks(Protocol):
    """Callable that the fixture returns."""

    def __call__(self, processor: Any, params: Any = None, **options: Any) -> CheckReport:
        """`check_processor` with the same arguments; a test that calls it fails with the whole report."""


@pytest.fixture
def processor_checks() -> ProcessorChecks:
    """`processor_checks(MyProcessor, params=[{"my_argument": 1}])` is all that a test of a processor needs."""
    # Not above: every run of pytest loads this file, wherever the package is installed.
    from fastdeploy_lp.logits_processor.testing import check_processor

    def check(processor: Any, params: Any = None, **options: Any) -> CheckReport:
        report = check_processor(processor, params, **options)
        report.require_passed()
        return report

    return check
