"""Converts one GGUF file to one Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdeploy_lp.checkpoint.gguf_config import model_config
from fastdeploy_lp.checkpoint.gguf_reader import read_gguf
from fastdeploy_lp.checkpoint.gguf_tokenizer import build_tokenizer, tokenizer_config
from fastdeploy_lp.checkpoint.gguf_weights import write_weights


def convert_gguf(source: Path, directory: Path, *, show_progress: bool) -> None:
    """Write config.json, tokenizer.json, tokenizer_config.json and model.safetensors into `directory`.

    The files appear one by one; the caller makes them visible together.
    Raises CheckpointError for an unusable GGUF, OSError if `directory` cannot be written.
    """
    file = read_gguf(source)
    config = model_config(file)
    _write_json(directory / "config.json", config)
    (directory / "tokenizer.json").write_text(build_tokenizer(file).to_str(pretty=True), encoding="utf-8")
    _write_json(directory / "tokenizer_config.json", tokenizer_config(file))
    write_weights(file, config, directory / "model.safetensors", show_progress=show_progress)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
