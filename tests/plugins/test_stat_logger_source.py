"""Where stat loggers come from, and what is said of one that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.distributions import import_folder, install
from support.stat_loggers import Keeps
from support.tiny import tiny_fd_config

from fastdeploy_lp.plugins import PluginError
from fastdeploy_lp.plugins.stat_logger import given_stat_loggers, installed_stat_loggers

GROUP = "stat_logger_plugins"
MODULE = "made_stat_loggers"
SOURCE = '''
"""Entry points of a test."""
from fastdeploy_lp import StatLoggerBase
from support.stat_loggers import Keeps

def function():
    return Keeps

class Other: ...

class Unfinished(StatLoggerBase):
    def record(self, scheduler_stats, iteration_stats, engine_idx=0): ...

class Broken(Keeps):
    def __init__(self, fd_config, engine_index=0):
        raise OSError("disk full")
'''
BAD = {
    "function": "is a function; the entry point must name a class derived from fastdeploy_lp.StatLoggerBase",
    "Other": "is the class Other; the entry point must name a class derived from",
    "Unfinished": "does not define __init__, log_engine_initialized",
    "Absent": "cannot be loaded: AttributeError",
}


@contextmanager
def installed(folder: Path, requires: str = "fastdeploy-lp", **points: str) -> Iterator[None]:
    """Inside, there is a distribution with these entry points, all of which may load."""
    with import_folder(folder, only=",".join(points)):
        install(folder, "made_loggers", {GROUP: points}, requires=[requires], modules={MODULE: SOURCE})
        yield


def test_all_that_may_load_are_built_by_name(tmp_path: Path) -> None:
    config = tiny_fd_config()
    both = dict.fromkeys(("one", "two"), "support.stat_loggers:Keeps")
    # Undone inside, since leaving `installed` puts back what was there before it.
    with installed(tmp_path, **both), pytest.MonkeyPatch.context() as patch:
        built = [source.build(config) for source in installed_stat_loggers()]
        assert [(name, type(made)) for name, made in built] == [("one", Keeps), ("two", Keeps)]
        patch.setenv("FASTDEPLOY_LP_PLUGINS", "two")
        assert [source.name for source in installed_stat_loggers()] == ["two"]
        patch.setenv("FASTDEPLOY_LP_PLUGINS", "")
        assert installed_stat_loggers() == []


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_stat_logger_is_told_by_name(tmp_path: Path, name: str) -> None:
    with installed(tmp_path, mine=f"{MODULE}:{name}"), pytest.raises(PluginError) as error:
        installed_stat_loggers()
    assert str(error.value).startswith("stat-logger plugin mine (made_loggers 1.0): ")
    assert BAD[name] in str(error.value)


def test_a_constructor_that_raises_ends_the_start_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with installed(tmp_path, mine=f"{MODULE}:Broken"):
        (source,) = installed_stat_loggers()
        with pytest.raises(PluginError, match=r"plugin mine .*: cannot be made: OSError: disk full"):
            source.build(tiny_fd_config())
    assert "Traceback" in caplog.text


def test_one_for_another_release_is_not_imported(tmp_path: Path) -> None:
    refused = pytest.raises(PluginError, match=r"plugin mine \(made_loggers 1.0\): needs fastdeploy-lp>=99")
    with installed(tmp_path, "fastdeploy-lp>=99", mine="made_never:Logger"), refused:
        installed_stat_loggers()


def test_a_program_gives_classes_or_functions() -> None:
    def made_here(fd_config: Any, engine_index: int) -> Keeps:
        return Keeps(fd_config, engine_index)

    sources = given_stat_loggers([Keeps, made_here])
    assert [source.name.rpartition(".")[2] for source in sources] == ["Keeps", "made_here"]
    assert all(isinstance(source.build(tiny_fd_config())[1], Keeps) for source in sources)


@pytest.mark.parametrize("wrong", [dict, "Keeps", 5])
def test_what_a_program_may_not_give_is_told(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"stat_loggers\.1: must be a class derived from fastdeploy_lp.StatLoggerBase"):
        given_stat_loggers([Keeps, wrong])


def test_what_a_programs_function_makes_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    (source,) = given_stat_loggers([lambda _config, _index: 5])  # type: ignore[list-item, return-value]
    with pytest.raises(ValueError, match=r"stat_loggers: .*<lambda> made a int"):
        source.build(tiny_fd_config())
    (source,) = given_stat_loggers([lambda: 5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"stat_loggers: .*<lambda> cannot be made: TypeError"):
        source.build(tiny_fd_config())
    assert "Traceback" in caplog.text
