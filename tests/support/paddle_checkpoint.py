"""Golden models as PaddleNLP writes them: linear layers transposed, names that begin with the family's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from support.tiny import GOLDEN

Tensors = dict[str, NDArray[Any]]


def paddle_tensors(name: str, prefix: str) -> Tensors:
    """The golden model's tensors in Paddle's layout."""
    found = {}
    for key, array in load_file(GOLDEN / name / "model.safetensors").items():
        linear = array.ndim == 2 and "embed_tokens" not in key
        target = key if key.startswith("lm_head") else prefix + key.removeprefix("model.")
        found[target] = np.ascontiguousarray(array.T) if linear else array
    return found


def write_pdparams(folder: Path, name: str, prefix: str, *, dtype: str = "float32", protocol: int = 4) -> Path:
    """A directory with `model_state.pdparams`, written by Paddle itself."""
    shutil.copy(GOLDEN / name / "config.json", folder / "config.json")
    state = {key: paddle.to_tensor(array).astype(dtype) for key, array in paddle_tensors(name, prefix).items()}
    if json.loads((folder / "config.json").read_text())["tie_word_embeddings"]:
        # A shared parameter stands in the state dict under both names.
        state["lm_head.weight"] = state[f"{prefix}embed_tokens.weight"]
    paddle.save(state, str(folder / "model_state.pdparams"), protocol=protocol)
    return folder


def write_paddle_safetensors(folder: Path, name: str, prefix: str, *, framework: str = "pd") -> Path:
    """A directory with safetensors in two shards that say they are of this framework; PaddleNLP says "np"."""
    config = json.loads((GOLDEN / name / "config.json").read_text()) | {"paddlenlp_version": "3.0.0b4"}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = paddle_tensors(name, prefix)
    weight_map = {}
    for number in range(2):
        part = dict(list(tensors.items())[number::2])
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file(part, folder / file, metadata={"format": framework})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
