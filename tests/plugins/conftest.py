"""A folder in which distributions can be installed for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.distributions import import_folder


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """On the import path; every plugin may load but those that are installed for all tests, whose names it knows."""
    with import_folder(tmp_path, only="one,two,three") as folder:
        yield folder
