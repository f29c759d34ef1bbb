"""Which IO processor an operator's name leads to, and what is said of one that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.distributions import import_folder, install
from support.io_processors import Hasty, Lengths
from support.tiny import tiny_fd_config

from fastdeploy_lp.plugins import PluginError, UnknownPluginError
from fastdeploy_lp.plugins.io_processor import find_io_processor

GROUP = "io_processor_plugins"
MODULE = "made_io_processors"
SOURCE = '''
"""Entry points of a test."""
from support.io_processors import Hasty, Lengths
from fastdeploy_lp import IOProcessor, StatLoggerBase

PATH = "support.io_processors:Hasty"
NUMBER = 5

def dotted():
    return "support.io_processors.Lengths"

def the_class():
    return Hasty

def nothing():
    return None

def absent():
    return "support.io_processors:Absent"

def other():
    return "fastdeploy_lp:StatLoggerBase"

def raises():
    raise KeyError("no driver")

class Unfinished(IOProcessor):
    def parse_request(self, data): return data

class Broken(Lengths):
    def __init__(self, fd_config):
        raise OSError("no such file")
'''
GOOD = {
    "function": "support.io_processors:lengths",
    "dotted": f"{MODULE}:dotted",
    "path": f"{MODULE}:PATH",
    "cls": "support.io_processors:Lengths",
    "the_class": f"{MODULE}:the_class",
}
BAD = {
    "nothing": (f"{MODULE}:nothing", "leads to no IO processor: None is no name of a class"),
    "number": (f"{MODULE}:NUMBER", "names no function but a int"),
    "absent": (f"{MODULE}:absent", "support.io_processors has no Absent"),
    "other": (f"{MODULE}:other", "StatLoggerBase is not derived from fastdeploy_lp.IOProcessor"),
    "raises": (f"{MODULE}:raises", "raised: KeyError: 'no driver'"),
    "no_module": ("made_nowhere:f", "cannot be loaded: ModuleNotFoundError"),
    "unfinished": (f"{MODULE}:Unfinished", "Unfinished does not define post_process, pre_process"),
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path) -> Iterator[None]:
    """Two distributions, one of them for another release."""
    points = GOOD | {name: value for name, (value, _) in BAD.items()} | {"broken": f"{MODULE}:Broken"}
    with import_folder(tmp_path, only=",".join([*points, "later"])):
        install(tmp_path, "made_processors", {GROUP: points}, modules={MODULE: SOURCE})
        install(tmp_path, "made_later", {GROUP: {"later": "made_never:f"}}, requires=["fastdeploy-lp>=99"])
        yield


@pytest.mark.parametrize("name", GOOD)
def test_every_form_of_an_entry_point_leads_to_the_class(name: str) -> None:
    built = find_io_processor(name).build(tiny_fd_config())
    assert built.name == name
    assert type(built.processor) in (Lengths, Hasty)
    assert built.processor.fd_config.model_config.model == "tiny-llama"


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_io_processor_is_told_by_name(name: str) -> None:
    with pytest.raises(PluginError) as error:
        find_io_processor(name)
    assert str(error.value).startswith(f"IO-processor plugin {name} (made_processors 1.0): ")
    assert BAD[name][1] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_constructor_that_raises_ends_the_start_by_name(caplog: pytest.LogCaptureFixture) -> None:
    source = find_io_processor("broken")
    with pytest.raises(PluginError, match=r"plugin broken .*: cannot be made: OSError: no such file"):
        source.build(tiny_fd_config())
    assert "Traceback" in caplog.text


def test_a_wrong_name_lists_those_that_there_are() -> None:
    with pytest.raises(UnknownPluginError) as error:
        find_io_processor("functoin")
    assert all(name in str(error.value) for name in (*GOOD, *BAD))


def test_the_filter_holds_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "cls")
    find_io_processor("cls")
    with pytest.raises(UnknownPluginError, match="FASTDEPLOY_LP_PLUGINS leaves it out; there are: cls"):
        find_io_processor("path")


def test_one_for_another_release_is_not_imported() -> None:
    with pytest.raises(PluginError, match=r"plugin later \(made_later 1.0\): needs fastdeploy-lp>=99"):
        find_io_processor("later")
