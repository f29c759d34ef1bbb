"""The packages of `examples/plugins`, installed as their users would install them."""

from __future__ import annotations

import shutil

import pytest
from support.fresh_venv import FreshVenv
from support.server import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "plugins"


@pytest.fixture(scope="session")
def plugin_venv(tmp_path_factory: pytest.TempPathFactory) -> FreshVenv:
    """Every package of the folder, copied first: building one writes beside its sources."""
    copy = tmp_path_factory.mktemp("examples") / "plugins"
    shutil.copytree(EXAMPLES, copy, ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
    made = FreshVenv(tmp_path_factory.mktemp("plugin-venv"))
    made.install(copy)
    return made
