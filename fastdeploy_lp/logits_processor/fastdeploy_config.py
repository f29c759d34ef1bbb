"""The configuration as FastDeploy's processors read it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from fastdeploy_lp.config import FDConfig, ModelConfig

MARKERS = {"think_start_id": "<think>", "think_end_id": "</think>", "line_break_id": "\n"}
ABSENT = -1


class FastDeployModelConfig:
    """The model's configuration with the entries of its `config.json`, and the token ids of `MARKERS`.

    A marker that is not one token of the vocabulary is -1. `dtype` is the logits' dtype, which processors use for their
    tensors.
    """

    dtype = "float32"

    def __init__(self, model_config: ModelConfig) -> None:
        self._config = model_config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if hasattr(self._config, name):
            return getattr(self._config, name)
        if name in self._config.hf_config:
            return self._config.hf_config[name]
        if name in MARKERS:
            return self._marker_ids[name]
        raise AttributeError(f"the model's configuration has no {name!r}")

    @cached_property
    def _marker_ids(self) -> dict[str, int]:
        path = Path(self._config.directory) / "tokenizer.json"
        if self._config.skip_tokenizer_init or not path.is_file():
            return dict.fromkeys(MARKERS, ABSENT)
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        encoded = {name: tokenizer.encode(text, add_special_tokens=False).ids for name, text in MARKERS.items()}
        return {name: ids[0] if len(ids) == 1 else ABSENT for name, ids in encoded.items()}


class FastDeployConfig:
    """An FDConfig whose `model_config` is a FastDeployModelConfig."""

    def __init__(self, fd_config: FDConfig) -> None:
        self._config = fd_config
        self.model_config = FastDeployModelConfig(fd_config.model_config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._config, name)
