"""Processors of installed packages."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support import distributions
from support.declared import MODULE, names, refusal
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.logits_processor import LogitsProcessorSpecError, load_processors
from fastdeploy_lp.logits_processor.registry import load_processor


def test_entry_points_load_by_themselves_before_the_declared_ones(folder: Path, plugins: pytest.MonkeyPatch) -> None:
    declared = load_processors(["mine:Good", "LogitBiasLogitsProcessor"])
    assert [(each.name, each.source, each.dialect.name) for each in declared] == [
        ("example_plugin", "entry point", "plugin-dict"),
        ("my_decoder", "entry point", "vllm-v1"),
        ("Good", "module", "native"),
        ("LogitBiasLogitsProcessor", "builtin", "native"),
    ]
    assert declared[0].spec == "example_plugin"
    assert names() == ["example_plugin", "my_decoder"]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("", []),
        ("my_decoder", ["my_decoder"]),
        ("my_decoder,example_plugin", ["example_plugin", "my_decoder"]),
        (" example_plugin , nobody ", ["example_plugin"]),
        ("nobody", []),
    ],
)
def test_a_variable_says_which_entry_points_load(
    plugins: pytest.MonkeyPatch, allowed: str, expected: list[str]
) -> None:
    plugins.setenv("FASTDEPLOY_LP_PLUGINS", allowed)
    assert names() == expected


def test_declaring_an_entry_point_moves_it(folder: Path, plugins: pytest.MonkeyPatch) -> None:
    assert names("mine:Good", "my_decoder") == ["example_plugin", "Good", "my_decoder"]
    assert names("my_decoder", "mine:Good", "example_plugin") == ["my_decoder", "Good", "example_plugin"]
    assert names("mine:Good", "other=my_decoder") == ["example_plugin", "Good", "other"]


def test_an_entry_point_stands_beside_itself_under_an_alias(plugins: pytest.MonkeyPatch) -> None:
    assert names("my_decoder", "other=my_decoder") == ["example_plugin", "my_decoder", "other"]
    assert "is a second my_decoder" in refusal("my_decoder", "my_decoder")


def test_an_entry_points_name_may_not_be_taken_by_another(folder: Path, plugins: pytest.MonkeyPatch) -> None:
    assert "is a second my_decoder; names must be unique" in refusal("my_decoder=mine:Good")


def test_what_is_left_out_is_not_known_by_name(plugins: pytest.MonkeyPatch) -> None:
    plugins.setenv("FASTDEPLOY_LP_PLUGINS", "example_plugin")
    assert "is no name known here" in refusal("my_decoder")
    message = refusal("example_plugins")
    assert "did you mean example_plugin?" in message
    assert "my_decoder" not in message


def test_a_module_path_leads_to_a_plugin_without_its_entry_point() -> None:
    (declared,) = load_processors(["mine=example_plugin.main:LOGITS_PROCESSOR_PLUGIN"])
    assert (declared.name, declared.source, declared.dialect.name) == ("mine", "module", "plugin-dict")
    (declared,) = load_processors(["example_plugin.main:LOGITS_PROCESSOR_PLUGIN"])
    assert declared.name == "MyLogitsProcessor"
    assert declared.description == "Multiplies the logit of `token_id` by 100."


@pytest.fixture
def installed(folder: Path, plugins: pytest.MonkeyPatch) -> Path:
    """A folder in which distributions with entry points can be written; others do not load."""
    plugins.setenv("FASTDEPLOY_LP_PLUGINS", "tested")
    importlib.invalidate_caches()
    return folder


def install(folder: Path, value: str, source: str) -> None:
    info = folder / "tested-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tested\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fastdeploy_lp.logits_processors]\ntested = {value}\n")
    (folder / "tested_module.py").write_text(source)


def test_an_installed_class_has_the_entry_points_name(installed: Path) -> None:
    install(installed, "tested_module:Good", MODULE)
    (declared,) = load_processors([])
    assert (declared.name, declared.found.__name__) == ("tested", "Good")


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("tested_module:Good", "import a_package_nobody_has", "No module named 'a_package_nobody_has'"),
        ("tested_module:Good", "1 / 0", "ZeroDivisionError: division by zero"),
        ("tested_module:Missing", MODULE, "Missing"),
        ("no_such_module:Good", "", "No module named 'no_such_module'"),
        ("no_such_module:Good", "", "FASTDEPLOY_LP_PLUGINS"),
        ("tested_module:Good", "import vllm", "--vllm-compat"),
        ("tested_module:Good", "import fastdeploy", "--fastdeploy-compat"),
        ("tested_module:NotOne", MODULE, "must be a subclass of LogitsProcessor"),
        ("tested_module:LacksApply", MODULE, "has no apply"),
    ],
)
def test_an_entry_point_that_cannot_be_used_says_why(installed: Path, value: str, source: str, reason: str) -> None:
    install(installed, value, source)
    message = refusal()
    assert "'tested'" in message
    assert reason in message


def test_a_plugin_that_is_reached_twice_runs_re_entrantly(plugins: pytest.MonkeyPatch) -> None:
    assert names() == names() == ["example_plugin", "my_decoder"]


FOR_VLLM = """
from vllm.v1.sample.logits_processor import LogitsProcessor, MinPLogitsProcessor, MinTokensLogitsProcessor
"""
VLLM_GROUP, OWN_GROUP = "vllm.logits_processors", "logits_processors"


def listed(*specs: str, on: bool = True) -> list[tuple[str, str, str]]:
    declared = load_processors(specs, vllm_entry_points=on)
    return [(each.name, each.source, each.dialect.name) for each in declared]


def test_vllms_entry_points_load_with_the_option(installed: Path) -> None:
    points = {VLLM_GROUP: {"tested": "for_vllm:MinPLogitsProcessor", "other": "for_vllm:MinTokensLogitsProcessor"}}
    distributions.install(installed, "package", points, modules={"for_vllm": FOR_VLLM})
    assert listed(on=False) == []
    assert "add --vllm-compat" in refusal("tested")
    with vllm_stand_ins():
        # FASTDEPLOY_LP_PLUGINS lets this one load alone.
        assert listed() == [("tested", "entry point", "torch")]
        assert listed("x=tested", "LogitBiasLogitsProcessor")[0] == ("x", "entry point", "torch")
        assert load_processor("tested").found.__name__ == "MinPLogitsProcessor"
    assert "is left out by FASTDEPLOY_LP_PLUGINS" not in refusal("tested")


def test_a_package_of_both_groups_means_its_own_for_this_server(installed: Path) -> None:
    points = {VLLM_GROUP: {"tested": "for_vllm:MinPLogitsProcessor"}, OWN_GROUP: {"tested": "ours:Good"}}
    distributions.install(installed, "package", points, modules={"for_vllm": FOR_VLLM, "ours": MODULE})
    with vllm_stand_ins():
        assert listed() == [("tested", "entry point", "native")]


def test_two_packages_may_not_have_one_name_in_two_groups(installed: Path) -> None:
    distributions.install(
        installed, "package", {VLLM_GROUP: {"tested": "for_vllm:MinPLogitsProcessor"}}, modules={"for_vllm": FOR_VLLM}
    )
    distributions.install(installed, "another", {OWN_GROUP: {"tested": "ours:Good"}}, modules={"ours": MODULE})
    with vllm_stand_ins(), pytest.raises(LogitsProcessorSpecError, match="another has a vLLM logits-processor plugin"):
        listed()


def test_an_entry_point_that_needs_more_than_the_stand_ins_says_so(installed: Path) -> None:
    points = {VLLM_GROUP: {"tested": "needs_more:Any"}}
    distributions.install(installed, "package", points, modules={"needs_more": "import vllm.lora"})
    with vllm_stand_ins(), pytest.raises(LogitsProcessorSpecError) as caught:
        listed()
    assert "add --vllm-compat" not in str(caught.value)
    assert "needs vLLM itself" in str(caught.value)
