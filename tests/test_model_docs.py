"""What docs/models.md and docs/add-a-model.md print is what the package has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import _type_traits
from support.server import REPOSITORY

from fastdeploy_lp.checkpoint.gguf_architecture import ARCHITECTURES
from fastdeploy_lp.checkpoint.pre_tokenizers import PRE_TOKENIZATIONS
from fastdeploy_lp.checkpoint.resolve import NAMED_MODELS
from fastdeploy_lp.model_executor.layers.rope_scaling import KINDS
from fastdeploy_lp.model_executor.models.registry import MODELS

MODELS_PAGE = (REPOSITORY / "docs" / "models.md").read_text()
FAMILY_PAGE = (REPOSITORY / "docs" / "add-a-model.md").read_text()
SOURCES = {
    "phi3.py": "fastdeploy_lp/model_executor/models/phi3.py",
    "registry.py": "fastdeploy_lp/model_executor/models/registry.py",
    "hf_reference.py": "tests/support/hf_reference.py",
}


def test_the_tables_name_every_family_architecture_and_model() -> None:
    for name in (*MODELS, *ARCHITECTURES, *NAMED_MODELS, *PRE_TOKENIZATIONS, *KINDS):
        if name not in ("gpt2",):  # another spelling of gpt-2
            assert f"`{name}`" in MODELS_PAGE, name


def test_the_quantization_types_are_all_there() -> None:
    described = re.search(r"dequantizes is read: (.*?)\. The", MODELS_PAGE, re.DOTALL)
    assert described is not None
    text = described.group(1)
    for quant in (*_type_traits, GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        family = re.sub(r"^(Q[2-6])_K$|^(IQ[1-4])_.*$", lambda found: "K" if found[1] else "IQ", quant.name)
        expected = {"K": "Q2_K to Q6_K", "IQ": "IQ1 to IQ4"}.get(family, family)
        assert expected in text, quant.name


@pytest.mark.parametrize("name", SOURCES)
def test_the_example_is_the_source(name: str) -> None:
    (block,) = re.findall(rf"```python\n# file: {re.escape(name)}\n(.*?)```", FAMILY_PAGE, re.DOTALL)
    assert block.strip() in (REPOSITORY / SOURCES[name]).read_text()


def test_every_block_is_looked_at() -> None:
    assert FAMILY_PAGE.count("```") == 2 * len(SOURCES)


def test_the_files_that_the_pages_name_exist() -> None:
    package = Path(REPOSITORY / "fastdeploy_lp")
    for path in re.findall(r"`((?:models|checkpoint)/\w+\.py)`", FAMILY_PAGE):
        assert (package / path).exists() or (package / "model_executor" / path).exists(), path
