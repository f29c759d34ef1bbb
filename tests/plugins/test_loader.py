"""Which plugins load, in which order, and what happens to those that cannot."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from support.distributions import install

from fastdeploy_lp.plugins import (
    PluginError,
    PluginGroup,
    PluginState,
    UnknownPluginError,
    allowed_plugins,
    call,
    installed_plugins,
    load,
    load_group,
    load_named,
    running_plugin,
)
from fastdeploy_lp.plugins.installed import unknown_names
from fastdeploy_lp.version import __version__

STRICT = [group for group in PluginGroup if group is not PluginGroup.GENERAL]
GENERAL = PluginGroup.GENERAL


def names(group: PluginGroup) -> list[str]:
    return [loaded.name for loaded in load_group(group)]


# What is installed, and what may load


@pytest.mark.parametrize("group", PluginGroup)
def test_plugins_of_a_group_come_in_the_order_of_their_names(site: Path, group: PluginGroup) -> None:
    install(site, "zeta", {group.value: {"one": "zeta_module:value"}}, modules={"zeta_module": "value = 1"})
    install(site, "alpha", {group.value: {"two": "alpha_module:value"}}, modules={"alpha_module": "value = 2"})
    assert [(loaded.name, loaded.found) for loaded in load_group(group)] == [("one", 1), ("two", 2)]
    for other in PluginGroup:
        assert names(other) == (["one", "two"] if other is group else [])


def test_a_plugin_knows_where_it_comes_from(site: Path) -> None:
    install(site, "alpha", {"stat_logger_plugins": {"one": "m:v"}}, version="2.1", requires=["fastdeploy_lp>=0.1", "x"])
    (plugin,) = allowed_plugins(PluginGroup.STAT_LOGGER)
    assert (plugin.distribution, plugin.version, plugin.value) == ("alpha", "2.1", "m:v")
    assert plugin.requirements == ("fastdeploy_lp>=0.1",)
    assert str(plugin) == "stat-logger plugin one (alpha 2.1)"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("one", ["one"]),
        ("two,one", ["one", "two"]),
        (" two , nobody,", ["two"]),
        ("", []),
        (",", []),
        ("One", []),
        (None, ["one", "two"]),
    ],
)
@pytest.mark.parametrize("group", PluginGroup)
def test_the_variable_names_those_that_may_load(
    site: Path, monkeypatch: pytest.MonkeyPatch, group: PluginGroup, variable: str | None, expected: list[str]
) -> None:
    install(site, "alpha", {group.value: {"one": "os:path", "two": "os:sep"}})
    if variable is None:
        monkeypatch.delenv("FASTDEPLOY_LP_PLUGINS")
    else:
        monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", variable)
    ours = ("one", "two")
    assert [plugin.name for plugin in allowed_plugins(group) if plugin.name in ours] == expected
    assert [plugin.name for plugin in installed_plugins(group) if plugin.name in ours] == ["one", "two"]


def test_what_may_not_load_is_not_imported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "alpha", {"general_plugins": {"one": "left_out:value"}}, modules={"left_out": "1 / 0"})
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "two")
    assert load_group(GENERAL) == []
    assert "left_out" not in sys.modules


def test_names_that_nothing_installed_has(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "alpha", {"general_plugins": {"one": "m:v"}, "platform_plugins": {"two": "m:v"}})
    assert unknown_names() == ["three"]
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "")
    assert unknown_names() == []
    monkeypatch.delenv("FASTDEPLOY_LP_PLUGINS")
    assert unknown_names() == []


# Those that cannot be used

BROKEN = {
    "raises": ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
    "lacks": ("import a_package_nobody_has", "ModuleNotFoundError: No module named 'a_package_nobody_has'"),
    "misspelt": ("valu = 1", "AttributeError: module 'broken' has no attribute 'value'"),
    "exits": ("raise SystemExit('bye')", "cannot be loaded: SystemExit: bye"),
    "incomplete": ("def f(:", "SyntaxError"),
}


@pytest.mark.parametrize("group", STRICT)
@pytest.mark.parametrize("kind", BROKEN)
def test_one_that_cannot_be_imported_ends_the_start_by_name(
    site: Path, caplog: pytest.LogCaptureFixture, group: PluginGroup, kind: str
) -> None:
    code, reason = BROKEN[kind]
    install(site, "alpha", {group.value: {"one": "broken:value"}}, modules={"broken": code})
    with pytest.raises(PluginError) as caught:
        load_group(group)
    message = str(caught.value)
    assert message.startswith(f"{group.kind} one (alpha 1.0): ")
    assert reason in message
    assert "\n" not in message
    (record,) = caplog.records
    assert record.getMessage() == f"{message}; nothing starts with it"
    assert record.exc_info is not None
    assert record.exc_info[1] is caught.value.__cause__


@pytest.mark.parametrize("kind", BROKEN)
def test_a_general_one_is_skipped(site: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    code, reason = BROKEN[kind]
    points = {"one": "broken:value", "two": "whole:value"}
    install(site, "alpha", {"general_plugins": points}, modules={"broken": code, "whole": "value = 1"})
    assert names(GENERAL) == ["two"]
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert record.getMessage().endswith("; it is skipped")
    assert record.exc_info is not None


def test_of_two_with_one_name_the_second_is_refused(site: Path) -> None:
    for distribution in ("beta", "alpha"):
        install(site, distribution, {"general_plugins": {"one": "os:sep"}, "platform_plugins": {"one": "os:sep"}})
    assert [loaded.plugin.distribution for loaded in load_group(GENERAL)] == ["alpha"]
    for attempt in (lambda: load_group(PluginGroup.PLATFORM), lambda: load_named(PluginGroup.PLATFORM, "one")):
        with pytest.raises(PluginError, match="alpha has a platform plugin of this name, too; uninstall one") as caught:
            attempt()
        assert caught.value.plugin.distribution == "beta"


# Versions


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ("fastdeploy_lp", True),
        ("fastdeploy-lp>=0.0.1", True),
        ("Fastdeploy.LP >= 0.0.1", True),
        (f"fastdeploy_lp=={__version__}", True),
        ("fastdeploy_lp>=99", False),
        ("fastdeploy-lp<0.0.1", False),
        ("fastdeploy_lp[cpu]>=99", False),
        ("another>=99", True),
        ('fastdeploy_lp>=99; python_version < "3"', True),
        ('fastdeploy_lp>=99; python_version >= "3"', False),
        ('fastdeploy_lp>=99; extra == "more"', True),
        ("fastdeploy_lp @ https://example.org/x.whl", True),
    ],
)
def test_a_distribution_says_which_release_it_needs(
    site: Path, caplog: pytest.LogCaptureFixture, requirement: str, fits: bool
) -> None:
    group = PluginGroup.IO_PROCESSOR
    install(
        site, "alpha", {group.value: {"one": "tested:value"}}, requires=[requirement], modules={"tested": "value=1"}
    )
    if fits:
        assert names(group) == ["one"]
        return
    with pytest.raises(PluginError, match=f"needs fastdeploy-lp[<>=0-9.]+, this is {__version__}; install") as caught:
        load_group(group)
    assert caught.value.state is PluginState.INCOMPATIBLE
    assert "tested" not in sys.modules
    assert [record.exc_info for record in caplog.records] == [None]


def test_an_incompatible_general_plugin_is_skipped(site: Path) -> None:
    points = {"general_plugins": {"one": "os:sep"}}
    install(site, "alpha", points, requires=["fastdeploy_lp>=99"])
    assert load_group(GENERAL) == []


# One by its name


def test_one_by_its_name_leaves_the_others_alone(site: Path) -> None:
    points = {"one": "broken:value", "two": "whole:value"}
    install(site, "alpha", {"io_processor_plugins": points}, modules={"broken": "1 / 0", "whole": "value = 1"})
    assert load_named(PluginGroup.IO_PROCESSOR, "two").found == 1
    assert "broken" not in sys.modules
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        load_named(PluginGroup.IO_PROCESSOR, "one")


def test_a_name_that_there_is_none_of_lists_those_that_there_are(site: Path) -> None:
    with pytest.raises(
        UnknownPluginError, match=r"'one' is no IO-processor plugin that may load here; there are: none"
    ):
        load_named(PluginGroup.IO_PROCESSOR, "one")
    install(site, "alpha", {"io_processor_plugins": {"one": "os:sep", "two": "os:sep", "four": "os:sep"}})
    with pytest.raises(UnknownPluginError, match=r"there are: one, two$"):
        load_named(PluginGroup.IO_PROCESSOR, "on")
    with pytest.raises(UnknownPluginError, match=r"FASTDEPLOY_LP_PLUGINS leaves it out; there are: one, two$"):
        load_named(PluginGroup.IO_PROCESSOR, "four")


# Calling


def test_a_function_runs_as_its_plugin(site: Path) -> None:
    code = """
        from fastdeploy_lp.plugins import running_plugin

        at_import = running_plugin()

        def function(*given):
            return at_import, running_plugin(), given
    """
    install(site, "alpha", {"platform_plugins": {"one": "tested:function"}}, modules={"tested": code})
    (loaded,) = load_group(PluginGroup.PLATFORM)
    assert call(loaded, 1, 2) == (loaded.plugin, loaded.plugin, (1, 2))
    assert running_plugin() is None


def test_a_function_that_raises_is_told_by_name(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = "def function():\n    raise KeyError('a\\nb')\n"
    install(site, "alpha", {"platform_plugins": {"one": "tested:function"}}, modules={"tested": code})
    (loaded,) = load_group(PluginGroup.PLATFORM)
    with caplog.at_level(logging.ERROR), pytest.raises(PluginError) as caught:
        call(loaded)
    assert str(caught.value) == r"platform plugin one (alpha 1.0): tested:function raised: KeyError: 'a\nb'"
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("value", "kind"), [("tested", "module"), ("tested:number", "int")])
def test_what_is_no_function_cannot_be_called(site: Path, value: str, kind: str) -> None:
    install(site, "alpha", {"platform_plugins": {"one": value}}, modules={"tested": "number = 3"})
    (plugin,) = allowed_plugins(PluginGroup.PLATFORM)
    with pytest.raises(PluginError, match=f"{value} names no function but a {kind}; write module:function"):
        call(load(plugin))
