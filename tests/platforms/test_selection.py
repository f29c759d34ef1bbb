"""Which platform serves: our own, or one that a plugin brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.distributions import install

from fastdeploy_lp.platforms import CpuPlatform, find_platform
from fastdeploy_lp.plugins import PluginError, PluginState

MODULE = """
    from fastdeploy_lp.platforms import CpuPlatform, Platform

    class Fast(CpuPlatform):
        name = "fast"

    class Nameless(Platform):
        def worker_environment(self):
            return {}
        def free_memory(self):
            return 0
        def zeros(self, shape, dtype):
            raise NotImplementedError

    class Unfinished(Platform):
        name = "unfinished"

    class NoPlatform:
        name = "none"

    def by_colon():
        return "offered:Fast"

    def by_dots():
        return "offered.Fast"

    def absent():
        return None

    def raises():
        raise RuntimeError("no driver")

    def wrong():
        return WRONG
"""


def offer(site: Path, wrong: object = None, **functions: str) -> None:
    points = {name: f"offered:{function}" for name, function in functions.items()}
    code = MODULE + f"\n    WRONG = {wrong!r}\n"
    install(site, "alpha", {"platform_plugins": points}, modules={"offered": code})


def chosen(**environ: str) -> str:
    return find_platform(environ).name


@pytest.mark.parametrize("function", ["by_colon", "by_dots"])
def test_a_plugins_platform_serves(site: Path, function: str) -> None:
    offer(site, one=function)
    platform = find_platform({})
    assert (platform.name, type(platform).__module__) == ("fast", "offered")


def test_one_that_does_not_fit_leaves_it_to_ours(site: Path) -> None:
    offer(site, one="absent")
    assert type(find_platform({})) is CpuPlatform
    offer_second = {"platform_plugins": {"two": "offered:by_colon"}}
    install(site, "beta", offer_second)
    assert chosen() == "fast"


def test_of_two_that_claim_the_machine_neither_serves(site: Path) -> None:
    offer(site, one="by_colon", two="by_dots")
    with pytest.raises(ValueError, match="one and two all claim this machine; choose one by FASTDEPLOY_LP_PLATFORM"):
        find_platform({})
    assert chosen(FASTDEPLOY_LP_PLATFORM="two") == "fast"


def test_what_is_left_out_does_not_serve(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(site, one="by_colon")
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "two")
    assert chosen() == "cpu"


# By name


def test_the_variable_chooses(site: Path) -> None:
    offer(site, one="by_colon", two="raises")
    assert chosen(FASTDEPLOY_LP_PLATFORM="cpu") == "cpu"
    assert chosen(FASTDEPLOY_LP_PLATFORM="one") == "fast"
    assert "offered" in sys.modules


@pytest.mark.parametrize("name", ["tpu", "Cpu", "three"])
def test_a_name_that_there_is_none_of_lists_those_that_there_are(site: Path, name: str) -> None:
    offer(site, one="by_colon", two="absent")
    with pytest.raises(
        ValueError, match=rf"FASTDEPLOY_LP_PLATFORM: '{name}' is no platform; there are: .*cpu, one, two"
    ):
        chosen(FASTDEPLOY_LP_PLATFORM=name)


def test_a_chosen_one_that_does_not_fit_is_told(site: Path) -> None:
    offer(site, two="absent")
    with pytest.raises(ValueError, match=r"platform plugin two \(alpha 1.0\) says that it does not fit this machine"):
        chosen(FASTDEPLOY_LP_PLATFORM="two")


# What authors get wrong


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("offered:Missing", "the module offered has no Missing"),
        ("no_such_module:Fast", "there is no module no_such_module"),
        ("offered:NoPlatform", "must be a subclass of fastdeploy_lp.platforms.base:Platform"),
        ("offered:Unfinished", "abstract"),
        ("offered:Nameless", "has no name; set `name` to a text"),
        ("Fast", "is no name of a class; write module:Class"),
        (3, "returned 3; it must return the name of a class, 'module:Class', or None"),
        (True, "returned True"),
    ],
)
def test_a_function_that_names_no_platform_is_told_by_name(site: Path, wrong: object, reason: str) -> None:
    offer(site, wrong, one="wrong")
    with pytest.raises(PluginError) as caught:
        find_platform({})
    message = str(caught.value)
    assert message.startswith("platform plugin one (alpha 1.0): offered:wrong gave no usable platform: ")
    assert reason in message
    assert caught.value.state is PluginState.FAILED


def test_a_function_that_returns_the_class_is_told_to_return_its_name(site: Path) -> None:
    offer(site, one="Fast")
    with pytest.raises(PluginError, match="it must return the name of a class"):
        find_platform({})


def test_one_that_raises_ends_the_start(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    offer(site, one="raises", two="by_colon")
    with pytest.raises(PluginError, match="offered:raises raised: RuntimeError: no driver"):
        find_platform({})
    assert "in raises" in caplog.text


def test_asking_a_plugin_imports_no_paddle(tmp_path: Path) -> None:
    offer(tmp_path, one="by_colon")
    program = (
        "import sys; from fastdeploy_lp.platforms import current_platform; "
        "assert current_platform() is current_platform(); print(current_platform().name, 'paddle' in sys.modules)"
    )
    path = [str(tmp_path), *sys.path]
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path}; {program}"],
        capture_output=True,
        text=True,
        check=True,
        env={"FASTDEPLOY_LP_PLUGINS": "one"},
    )
    assert ran.stdout.split() == ["fast", "False"]
