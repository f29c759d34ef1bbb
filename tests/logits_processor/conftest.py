from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.declared import MODULE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(MODULE)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The installed plugin packages load, unless the test says which."""
    monkeypatch.delenv("FASTDEPLOY_LP_PLUGINS")
    return monkeypatch


@pytest.fixture
def as_at_a_terminal() -> Iterator[None]:
    """SIGINT raises an interrupt, whatever the test before has left as its handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def as_in_a_worker() -> Iterator[None]:
    """SIGINT is ignored: no interrupt that a processor raises can be a user's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)
