"""Names of classes, and what is wrong with those that lead to none."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from support.distributions import install

from fastdeploy_lp.plugins import load_class, normalized_path


@pytest.mark.parametrize("name", ["collections:OrderedDict", "collections.OrderedDict"])
def test_both_spellings_lead_to_the_class(name: str) -> None:
    assert load_class(name) is collections.OrderedDict
    assert load_class(name, dict) is collections.OrderedDict
    assert normalized_path(name) == "collections:OrderedDict"


def test_a_class_inside_a_class(site: Path) -> None:
    install(site, "alpha", {}, modules={"nested": "class A:\n    class B:\n        pass\n"})
    assert load_class("nested:A.B").__qualname__ == "A.B"


@pytest.mark.parametrize(
    "name", ["", "Class", ":Class", "module:", "a:b:c", "a b:C", "a.b:1C", "a..b:C", None, 3, dict]
)
def test_what_is_no_name_of_a_class(name: object) -> None:
    with pytest.raises(ValueError, match="is no name of a class; write module:Class"):
        normalized_path(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:C", "'no_such_module:C': there is no module no_such_module"),
        ("collections.no_such:C", "there is no module collections.no_such"),
        ("collections:NoSuch", "the module collections has no NoSuch"),
        ("collections:namedtuple", "is no class but a function"),
        ("collections:deque", "must be a subclass of builtins:dict"),
        ("breaking:C", "importing breaking failed: ZeroDivisionError: division by zero"),
        ("ending:C", "importing ending failed: SystemExit: no driver"),
        ("lacking:C", "importing lacking failed: No module named 'a_package_nobody_has'"),
    ],
)
def test_a_name_that_leads_to_no_such_class_says_why(site: Path, name: str, reason: str) -> None:
    modules = {"breaking": "1 / 0", "ending": "raise SystemExit('no driver')", "lacking": "import a_package_nobody_has"}
    install(site, "alpha", {}, modules=modules)
    with pytest.raises(ValueError) as caught:
        load_class(name, dict)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
