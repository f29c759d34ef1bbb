"""Architectures that plugins bring."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.distributions import import_folder, install

from fastdeploy_lp import ModelRegistry
from fastdeploy_lp.model_executor.models.llama import LlamaForCausalLM
from fastdeploy_lp.model_executor.models.registry import MODELS, model_class
from fastdeploy_lp.plugins import PluginState, load_general_plugins

MODEL = """
    class Mine:
        def __init__(self, fd_config, weights): ...
        def initialize_cache(self, num_blocks): ...
        def forward(self, chunks): ...
        def compute_logits(self, hidden): ...

    class NoCache:
        def forward(self, chunks): ...
        def compute_logits(self, hidden): ...
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """On the import path, with the module `mine`; afterwards its models are forgotten."""
    with pytest.MonkeyPatch.context() as patch, import_folder(tmp_path, only="one,two") as folder:
        patch.setattr(ModelRegistry, "_registered", {})
        install(folder, "models", {}, modules={"mine": MODEL})
        yield folder


def found(architecture: str) -> type:
    return model_class({"architectures": [architecture]})


def test_a_name_is_imported_when_a_checkpoint_asks_for_it(site: Path) -> None:
    ModelRegistry.register_model("MineForCausalLM", "mine:Mine")
    assert "mine" not in sys.modules
    assert found("LlamaForCausalLM") is LlamaForCausalLM
    assert "mine" not in sys.modules
    assert found("MineForCausalLM").__name__ == "Mine"


def test_a_class_is_taken_as_it_is(site: Path) -> None:
    class Own(LlamaForCausalLM):
        pass

    ModelRegistry.register_model("OwnForCausalLM", Own)
    assert found("OwnForCausalLM") is Own


def test_the_first_known_architecture_counts(site: Path) -> None:
    ModelRegistry.register_model("MineForCausalLM", "mine:Mine")
    asked = {"architectures": ["NobodysForCausalLM", "MineForCausalLM", "LlamaForCausalLM"]}
    assert model_class(asked).__name__ == "Mine"


@pytest.mark.parametrize("given", [5, "LlamaForCausalLM", [["LlamaForCausalLM"]], {"LlamaForCausalLM": 1}, True])
def test_architectures_that_are_no_list_of_names_are_told(given: object) -> None:
    with pytest.raises(ValueError, match=r"config\.json: architectures is .*; it must be a list of texts"):
        model_class({"architectures": given})


def test_what_can_be_served_is_listed(site: Path) -> None:
    before = ModelRegistry.get_supported_archs()
    assert before == list(MODELS)
    ModelRegistry.register_model("MineForCausalLM", "mine.Mine")
    assert ModelRegistry.get_supported_archs() == [*before, "MineForCausalLM"]
    with pytest.raises(ValueError, match=r"\['Nobodys'\] are not supported; supported are .*, MineForCausalLM(;|$)"):
        found("Nobodys")


def test_registering_the_same_again_does_nothing(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("mine:Mine", "mine.Mine"):
        ModelRegistry.register_model("MineForCausalLM", name)
    assert caplog.records == []


def test_a_model_that_replaces_another_is_told(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    ModelRegistry.register_model("LlamaForCausalLM", "mine:Mine")
    assert found("LlamaForCausalLM").__name__ == "Mine"
    (record,) = caplog.records
    assert "ModelRegistry.register_model replaces the model of LlamaForCausalLM" in record.getMessage()
    assert len(ModelRegistry.get_supported_archs()) == len(MODELS)


@pytest.mark.parametrize(
    ("architecture", "model", "reason"),
    [
        ("", "mine:Mine", "architecture '' is no name"),
        ("Mine For", "mine:Mine", "architecture 'Mine For' is no name"),
        (None, "mine:Mine", "architecture None is no name"),
        ("MineForCausalLM", "Mine", "'Mine' is no name of a class; write module:Class, or give the class"),
        ("MineForCausalLM", "mine:", "is no name of a class"),
        ("MineForCausalLM", None, "None is no name of a class"),
        ("MineForCausalLM", dict, "builtins:dict has no initialize_cache and no forward and no compute_logits"),
    ],
)
def test_what_cannot_be_registered_is_told_at_once(site: Path, architecture: str, model: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        ModelRegistry.register_model(architecture, model)
    assert str(caught.value).startswith("register_model: ")
    assert reason in str(caught.value)
    assert ModelRegistry.get_supported_archs() == list(MODELS)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("no_such_module:Mine", "there is no module no_such_module"),
        ("mine:Yours", "the module mine has no Yours"),
        ("mine:NoCache", "has no initialize_cache; a model has initialize_cache, forward, compute_logits"),
    ],
)
def test_a_name_that_leads_to_no_model_names_the_plugin(site: Path, model: str, reason: str) -> None:
    code = f"""
        def register():
            from fastdeploy_lp import ModelRegistry

            ModelRegistry.register_model("MineForCausalLM", {model!r})
    """
    install(site, "alpha", {"general_plugins": {"one": "registering:register"}}, modules={"registering": code})
    assert [report.state for report in load_general_plugins()] == [PluginState.LOADED]
    with pytest.raises(ValueError) as caught:
        found("MineForCausalLM")
    assert str(caught.value).startswith("general plugin one (alpha 1.0): MineForCausalLM: ")
    assert reason in str(caught.value)


def test_registering_brings_neither_paddle_nor_the_models_module() -> None:
    program = (
        "import sys; from fastdeploy_lp import ModelRegistry; ModelRegistry.register_model('Mine', 'mine:Mine'); "
        "print([name for name in ('paddle', 'mine') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
