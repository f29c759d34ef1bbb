"""Loads a model from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import paddle

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.loader.weights import WeightsError, open_weights
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.registry import CausalLM, model_class
from fastdeploy_lp.model_executor.parallel.communicator import SINGLE_RANK, Communicator


def load_causal_lm(
    fd_config: FDConfig, *, communicator: Communicator = SINGLE_RANK, show_progress: bool = False
) -> CausalLM:
    """The model, or this rank's part of it.

    Raises CheckpointError, in one line that names the file, for a model that cannot be used.
    """
    config = fd_config.model_config
    files = read_model_files(Path(config.directory), need_tokenizer=False).weights
    try:
        cls = model_class(config.hf_config, config.model_impl)
    except ValueError as error:
        raise CheckpointError(f"{config.directory}: {error}") from error
    if communicator.size > 1 and not issubclass(cls, DecoderForCausalLM):
        raise CheckpointError(
            f"tensor_parallel_size: {communicator.size} is not allowed for {cls.__name__}, which is no "
            "DecoderForCausalLM; allowed is 1"
        )
    try:
        with (
            paddle.no_grad(),
            open_weights(files, communicator=communicator, show_progress=show_progress) as weights,
        ):
            model = cls(fd_config, weights)
            weights.require_all_taken()
    except WeightsError:
        raise
    except CheckpointError as error:
        # Errors in config.json are raised where its path is unknown.
        raise CheckpointError(f"{config.directory}: {error}") from error
    return model
