"""A folder in which platform plugins can be installed for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.distributions import import_folder


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """On the import path; the plugins one and two may load."""
    with import_folder(tmp_path, only="one,two") as folder:
        yield folder
