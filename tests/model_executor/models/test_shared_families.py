"""Every family, shared by ranks, against the reference that it has alone; each rank reads its part and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.golden import MAX_MODEL_LEN, Run, assert_close, cases
from support.ranks import ThreadCommunicator, on_ranks
from support.tiny import tiny_fd_config

from fastdeploy_lp.model_executor.causal_lm import load_causal_lm
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.models.registry import model_class

FAMILIES = ("tiny-llama", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3", "tiny-ernie45", "tiny-phi3")


# Two heads of keys and values: with four ranks each is held twice.
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_references(name: str, ranks: int) -> None:
    fd_config = tiny_fd_config(name, max_model_len=MAX_MODEL_LEN, block_size=16)
    case = cases(name)[0]

    def work(communicator: ThreadCommunicator) -> np.ndarray:
        model = load_causal_lm(fd_config, communicator=communicator)
        model.initialize_cache(fd_config.cache_config.num_blocks)
        communicator.calls.clear()
        whole = Run(case.prompt, seat=0).chunk
        chunk = type(whole)(whole.token_ids, 0, whole.block_table, num_outputs=len(case.prompt))
        logits = np.array(model.compute_logits(model.forward([chunk])).numpy())
        layers = Dimensions.from_hf_config(fd_config.model_config.hf_config).num_layers
        assert communicator.calls == ["all_reduce"] * (1 + 2 * layers) + ["gather"]
        return logits

    assert_close(on_ranks(ranks, work)[0], case.logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rank_holds_its_part(name: str) -> None:
    """All matrices of two ranks are together as large as the model's, heads of keys and values too."""
    config = tiny_fd_config(name).model_config
    family = model_class(config.hf_config)
    dims = Dimensions.from_hf_config(config.hf_config)
    files = [Path(config.directory) / "model.safetensors"]

    def sizes(communicator: ThreadCommunicator) -> list[int]:
        with open_weights(files, communicator=communicator) as weights:
            parts = family.read_weights(weights, dims, config.hf_config)  # type: ignore[attr-defined]
            names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
            found = [getattr(layer, each).weight.size for layer in parts.layers for each in names]
            return [parts.embedding.size, *found]

    whole = on_ranks(1, sizes)[0]
    for of_rank in on_ranks(2, sizes):
        assert [2 * size for size in of_rank] == whole
