"""General plugins: called once a process, skipped when they fail."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from support.distributions import install

from fastdeploy_lp import LLM
from fastdeploy_lp.plugins import PluginState, load_general_plugins
from fastdeploy_lp.plugins.general import forget, warn_of_unknown_names

COUNTER = """
    calls = []

    def register():
        calls.append(None)
"""


def test_functions_are_called_once_a_process_however_often_they_are_loaded(site: Path) -> None:
    install(site, "alpha", {"general_plugins": {"one": "counting:register"}}, modules={"counting": COUNTER})
    for _ in range(3):
        (report,) = load_general_plugins()
        assert (report.state, report.reason) == (PluginState.LOADED, "")
    assert len(sys.modules["counting"].calls) == 1


def test_a_function_may_be_called_again(site: Path) -> None:
    """As in a process of its own, or by whoever calls it himself."""
    install(site, "alpha", {"general_plugins": {"one": "counting:register"}}, modules={"counting": COUNTER})
    load_general_plugins()
    forget()
    load_general_plugins()
    assert len(sys.modules["counting"].calls) == 2


def test_what_is_let_load_later_loads_then(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"one": "counting:register", "two": "counting:register"}
    install(site, "alpha", {"general_plugins": points}, modules={"counting": COUNTER})
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "one")
    load_general_plugins()
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "one,two")
    assert [report.plugin.name for report in load_general_plugins()] == ["one", "two"]
    assert len(sys.modules["counting"].calls) == 2


def test_a_program_loads_them_before_it_looks_for_a_model(site: Path) -> None:
    install(site, "alpha", {"general_plugins": {"one": "counting:register"}}, modules={"counting": COUNTER})
    for _ in range(2):
        with pytest.raises(ValueError, match="'no-such-model': no such model"):
            LLM("no-such-model")
    assert len(sys.modules["counting"].calls) == 1


def test_one_that_raises_is_skipped_and_told_once_with_its_traceback(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "def broken():\n    raise RuntimeError('no way')\n\n\ndef whole():\n    pass\n"
    points = {"one": "mixed:broken", "two": "mixed:whole"}
    install(site, "alpha", {"general_plugins": points}, modules={"mixed": code})
    for _ in range(2):
        first, second = load_general_plugins()
        assert (first.state, first.reason) == (PluginState.FAILED, "mixed:broken raised: RuntimeError: no way")
        assert second.state is PluginState.LOADED
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "general plugin one (alpha 1.0): mixed:broken raised: RuntimeError: no way" in record.getMessage()
    assert "in broken" in (caplog.text)


def test_one_for_another_release_is_skipped(site: Path) -> None:
    code = """
        from fastdeploy_lp.plugins import requires_version

        @requires_version(">=99")
        def register():
            raise AssertionError("called")
    """
    install(site, "alpha", {"general_plugins": {"one": "newer:register"}}, modules={"newer": code})
    (report,) = load_general_plugins()
    assert report.state is PluginState.INCOMPATIBLE
    assert report.reason.startswith("needs fastdeploy-lp>=99, this is ")


def test_names_that_nothing_has_are_warned_of(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "alpha", {"general_plugins": {"one": "os:sep", "two": "os:sep"}})
    warn_of_unknown_names()
    (record,) = caplog.records
    assert record.getMessage() == "FASTDEPLOY_LP_PLUGINS names three, but no plugin of that name is installed"
