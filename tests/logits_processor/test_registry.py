from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.declared import MODULE, names, refusal

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import BUILTIN, LogitsProcessor, load_processors
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor

# What works


@pytest.mark.parametrize("name", BUILTIN)
def test_a_builtin_is_found_by_its_class_name(name: str) -> None:
    (declared,) = load_processors([name])
    assert (declared.name, declared.spec, declared.given_as_object) == (name, name, False)
    assert declared.source == "builtin"
    assert issubclass(declared.found, LogitsProcessor)


def test_a_class_is_found_by_module_and_name(folder: Path) -> None:
    (declared,) = load_processors(["mine:Good"])
    assert declared.name == "Good"
    assert declared.spec == "mine:Good"
    assert declared.found is sys.modules["mine"].Good


def test_a_builtin_is_also_found_by_module_and_name() -> None:
    (declared,) = load_processors(["fastdeploy_lp.logits_processor.builtin.logit_bias:LogitBiasLogitsProcessor"])
    assert declared.found is LogitBiasLogitsProcessor


def test_a_nested_class_is_found(folder: Path) -> None:
    assert names("mine:Outer.Nested") == ["Nested"]


def test_a_module_in_a_package_is_found(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "deep.py").write_text(MODULE)
    assert names("package.deep:Good") == ["Good"]


def test_a_constructor_may_have_more_parameters_with_defaults(folder: Path) -> None:
    assert names("mine:Optional") == ["Optional"]


def test_processors_keep_the_order_they_were_declared_in(folder: Path) -> None:
    specs = ["mine:Optional", "LogitBiasLogitsProcessor", "mine:Good", "mine:Outer.Nested"]
    assert names(*specs) == ["Optional", "LogitBiasLogitsProcessor", "Good", "Nested"]
    assert names(*reversed(specs)) == ["Nested", "Good", "LogitBiasLogitsProcessor", "Optional"]


def test_nothing_declared_gives_an_empty_chain() -> None:
    assert load_processors([]) == []


class GivenAsObject(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


def test_a_class_object_is_taken_as_it_is() -> None:
    class Local(GivenAsObject): ...

    spec = spec_of(Local)
    declared = load_processors([spec, "LogitBiasLogitsProcessor"], {spec: Local})
    assert [(d.name, d.found, d.given_as_object) for d in declared] == [
        ("Local", Local, True),
        ("LogitBiasLogitsProcessor", LogitBiasLogitsProcessor, False),
    ]


def test_resolving_a_builtin_does_not_import_paddle() -> None:
    program = (
        "import sys\n"
        "from fastdeploy_lp.logits_processor import load_processors\n"
        "declared = load_processors(['LogitBiasLogitsProcessor'])\n"
        "print(declared[0].name, 'paddle' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["LogitBiasLogitsProcessor", "False"]


# What is written wrongly


def test_a_name_that_is_no_builtin_lists_the_builtins() -> None:
    message = refusal("Nonsense")
    assert "'Nonsense'" in message
    assert "no colon (module.path:ClassName)" in message
    for name in BUILTIN:
        assert name in message


@pytest.mark.parametrize("misspelt", ["LogitBiasLogitProcessor", "LogitsBiasProcessor", "logitbiaslogitsprocessor"])
def test_a_misspelt_builtin_suggests_the_right_name(misspelt: str) -> None:
    assert "did you mean LogitBiasLogitsProcessor?" in refusal(misspelt)


def test_a_dotted_path_suggests_the_colon(folder: Path) -> None:
    assert "write mine.sub:Good" in refusal("mine.sub.Good")


@pytest.mark.parametrize("spec", [":Good", "mine:", "mine:Good:x", "a:b:c", ":", "::"])
def test_a_colon_in_the_wrong_place_shows_the_form(folder: Path, spec: str) -> None:
    assert refusal(spec) == f"logits_processors: {spec!r} must read module.path:ClassName"


@pytest.mark.parametrize("spec", ["", " ", "."])
def test_an_empty_spec_is_refused(spec: str) -> None:
    assert repr(spec) in refusal(spec)


@pytest.mark.parametrize(
    ("spec", "absent"),
    [("no_such_module:Good", "no_such_module"), ("no_such.sub:Good", "no_such"), ("mine.sub:Good", "mine.sub")],
)
def test_a_module_that_cannot_be_found_is_named(folder: Path, spec: str, absent: str) -> None:
    message = refusal(spec)
    assert f"{spec!r} names the module {absent!r}, which cannot be found" in message
    assert "PYTHONPATH" in message


@pytest.mark.parametrize("spec", [".relative:Good", "mine..x:Good", "no such module:Good"])
def test_a_module_path_that_is_none_is_refused(folder: Path, spec: str) -> None:
    assert repr(spec) in refusal(spec)


def test_a_module_that_lacks_a_dependency_names_it(folder: Path) -> None:
    (folder / "needy.py").write_text("import a_package_nobody_has\n")
    message = refusal("needy:Good")
    assert "'needy:Good' cannot be used: importing 'needy' failed: " in message
    assert "a_package_nobody_has" in message
    assert "install what it needs" in message


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('out of coffee')", "RuntimeError: out of coffee"),
        ("def broken(:\n    pass", "SyntaxError"),
        ("from json import no_such_name", "ImportError: cannot import name 'no_such_name'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_module_that_fails_on_import_says_why(folder: Path, source: str, reason: str) -> None:
    (folder / "broken.py").write_text(source)
    message = refusal("broken:Good")
    assert "'broken:Good' cannot be used: importing 'broken' failed: " in message
    assert reason in message


def test_a_reason_of_several_lines_is_told_in_one(folder: Path) -> None:
    (folder / "broken.py").write_text("raise RuntimeError('first line\\nsecond line')")
    message = refusal("broken:Good")
    assert "first line" in message
    assert "second line" in message


@pytest.mark.parametrize("path", ["Goood", "Outer.Missing", "Good.Nested", "Outer..Nested"])
def test_a_missing_class_lists_the_processors_of_its_module(folder: Path, path: str) -> None:
    message = refusal(f"mine:{path}")
    assert f"mine has no {path!r}" in message
    assert "Good, " in message
    assert "Optional" in message
    assert "NotOne" not in message


def test_a_module_that_fails_to_give_what_it_has_says_why(folder: Path) -> None:
    (folder / "lazy.py").write_text("def __getattr__(name):\n    raise RuntimeError(f'{name} needs\\ntorch')\n")
    assert "'lazy:Good' cannot be used: lazy.Good: RuntimeError: Good needs torch" in refusal("lazy:Good")


def test_a_module_without_processors_says_so(folder: Path) -> None:
    (folder / "bare.py").write_text("x = 1\n")
    assert "it has no LogitsProcessor classes" in refusal("bare:Good")


def test_something_that_is_no_class_is_refused(folder: Path) -> None:
    message = refusal("mine:function")
    assert "is no class but function" in message
    assert "name the class itself" in message


def test_an_instance_given_as_object_is_refused() -> None:
    assert "is no class but GivenAsObject" in refusal("x:Y", objects={"x:Y": GivenAsObject(None)})  # type: ignore[arg-type]


def test_a_class_that_is_no_logits_processor_says_what_to_derive_from(folder: Path) -> None:
    message = refusal("mine:NotOne")
    assert "must be a subclass of LogitsProcessor" in message
    assert "derive it from fastdeploy_lp.openai.logits_processor.LogitsProcessor" in message
    assert "fastdeploy_lp.logits_processor.vllm_mrv2 or .vllm_v1" in message


@pytest.mark.parametrize(("name", "missing"), [("LacksApply", "apply"), ("LacksBoth", "apply, update_state")])
def test_missing_methods_are_listed(folder: Path, name: str, missing: str) -> None:
    message = refusal(f"mine:{name}")
    assert f"has no {missing}, which every LogitsProcessor needs: add a method of that name" in message
    assert "rename __call__" not in message


def test_call_instead_of_apply_suggests_the_name(folder: Path) -> None:
    assert "rename __call__ to apply" in refusal("mine:Called")


@pytest.mark.parametrize("name", ["TakesNothing", "TakesTwo", "KeywordOnly"])
def test_a_constructor_that_cannot_take_the_config_shows_the_right_one(folder: Path, name: str) -> None:
    message = refusal(f"mine:{name}")
    assert f"'mine:{name}' cannot be built (" in message
    assert "write its constructor as def __init__(self, fd_config)" in message


@pytest.mark.parametrize(
    "specs",
    [
        ("LogitBiasLogitsProcessor", "LogitBiasLogitsProcessor"),
        ("LogitBiasLogitsProcessor", "mine:LogitBiasLogitsProcessor"),
        ("mine:Good", "LogitBiasLogitsProcessor", "other:Good"),
    ],
)
def test_two_of_one_name_are_refused(folder: Path, specs: tuple[str, ...]) -> None:
    (folder / "other.py").write_text(MODULE)
    message = refusal(*specs)
    assert f"{specs[-1]!r} is a second {specs[-1].rpartition(':')[2]}" in message
    assert f"names must be unique, write another_name={specs[-1]}" in message


def test_a_mistake_behind_good_processors_is_found(folder: Path) -> None:
    assert "mine has no 'Missing'" in refusal("LogitBiasLogitsProcessor", "mine:Good", "mine:Missing")


# Names of one's own


def test_an_alias_is_the_name(folder: Path) -> None:
    specs = ["mine:Good", "my_bias=LogitBiasLogitsProcessor", "second=mine:Good", "LogitBiasLogitsProcessor"]
    declared = load_processors(specs)
    assert [each.name for each in declared] == ["Good", "my_bias", "second", "LogitBiasLogitsProcessor"]
    assert [each.source for each in declared] == ["module", "builtin", "module", "builtin"]
    assert [each.spec for each in declared] == specs
    assert declared[2].found is declared[0].found


def test_a_class_object_may_have_an_alias() -> None:
    spec = f"mine={spec_of(GivenAsObject)}"
    (declared,) = load_processors([spec], {spec: GivenAsObject})
    assert (declared.name, declared.found, declared.given_as_object) == ("mine", GivenAsObject, True)


@pytest.mark.parametrize("spec", ["=mine:Good", "my bias=mine:Good", "1st=mine:Good", "a-b=mine:Good", "a=", "="])
def test_an_alias_that_is_no_name_is_refused(folder: Path, spec: str) -> None:
    assert "must read alias=SPEC" in refusal(spec)


def test_two_of_one_alias_are_refused(folder: Path) -> None:
    assert "is a second a; names must be unique" in refusal("a=mine:Good", "a=LogitBiasLogitsProcessor")
    assert "is a second Good; names must be unique" in refusal("Good=LogitBiasLogitsProcessor", "mine:Good")
