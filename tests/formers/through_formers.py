"""Models that PaddleFormers computes, fed with token ids, and PaddleFormers' own forward pass to compare them with."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from support.golden import BLOCK_SIZE, MAX_MODEL_LEN, MAX_SEQS, Run
from support.tiny import tiny_fd_config

from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.causal_lm import load_causal_lm
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.paddleformers.converted_weights import fill
from fastdeploy_lp.model_executor.models.paddleformers.family import build, find_family

# Runs Hugging Face's library: PaddleFormers brings a release that does not import beside its other packages.
REFERENCE_PYTHON = os.environ.get("FASTDEPLOY_LP_REFERENCE_PYTHON", sys.executable)
FloatArray = NDArray[np.float32]
Prompts = list[list[int]]


def make_models(folder: Path, *names: str) -> None:
    """Writes models of `hf_models.FAMILIES` with what Hugging Face's implementation computes."""
    program = Path(__file__).with_name("hf_models.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [REFERENCE_PYTHON, "-W", "ignore", str(program), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def config_of(folder: Path | str, **options: Any) -> FDConfig:
    """The configuration of a model that PaddleFormers computes; `options` as for `tiny_fd_config`."""
    sizes = {"max_num_seqs": MAX_SEQS, "max_model_len": MAX_MODEL_LEN, "block_size": BLOCK_SIZE}
    fd_config = tiny_fd_config(str(folder), **{**sizes, **options})
    model = dataclasses.replace(fd_config.model_config, model_impl="paddleformers")
    return dataclasses.replace(fd_config, model_config=model)


class Served:
    """A model with a KV cache for MAX_SEQS sequences that returns the logits of every token."""

    def __init__(self, folder: Path | str) -> None:
        fd_config = config_of(folder)
        self.model = load_causal_lm(fd_config)
        with paddle.no_grad():
            self.model.initialize_cache(fd_config.cache_config.num_blocks)

    def logits(self, *runs: Run) -> list[FloatArray]:
        """For every run the logits [tokens, vocab_size] of all of its tokens, computed in one pass."""
        chunks = [dataclasses.replace(run.chunk, num_outputs=len(run.tokens)) for run in runs]
        with paddle.no_grad():
            logits = self.model.compute_logits(self.model.forward(chunks)).numpy()
        return np.split(logits, np.cumsum([len(run.tokens) for run in runs])[:-1])


class Own:
    """PaddleFormers' own forward pass: its attention over whole sequences, no cache, one sequence at a time."""

    def __init__(self, folder: Path) -> None:
        files = read_model_files(folder, need_tokenizer=False)
        with paddle.no_grad(), open_weights(files.weights) as weights:
            family = find_family(files.config["architectures"])
            self._model = build(family, files.config, "eager", len(weights.shapes()))
            fill(self._model, weights)

    def logits(self, prompt: list[int]) -> FloatArray:
        """Logits [tokens, vocab_size]."""
        with paddle.no_grad():
            found: FloatArray = self._model(paddle.to_tensor([prompt]), return_dict=True).logits[0].numpy()
        return found

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The most likely continuation."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]


def prompts_of(folder: Path) -> Prompts:
    """The prompts of a made model."""
    found: Prompts = json.loads((folder / "prompts.json").read_text())
    return found


def hf_logits(folder: Path) -> list[FloatArray]:
    """Hugging Face's logits of these prompts."""
    return list(np.load(folder / "hf_logits.npz").values())
