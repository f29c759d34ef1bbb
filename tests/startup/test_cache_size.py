from __future__ import annotations

from typing import Any

import pytest
from support.tiny import GOLDEN

from fastdeploy_lp.checkpoint import ModelFiles, num_parameters
from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.platforms import CpuPlatform
from fastdeploy_lp.startup.cache_size import kv_bytes_per_token, settle_num_blocks
from fastdeploy_lp.startup.engine_args import EngineArgs

CONFIG = {"num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 64}


@pytest.fixture
def files() -> ModelFiles:
    return read_model_files(GOLDEN / "tiny-llama", need_tokenizer=False)


def settle(files: ModelFiles, **options: Any) -> int:
    defaults: dict[str, Any] = {
        "max_model_len": 64,
        "max_num_seqs": 4,
        "override": None,
        "memory_share": 0.9,
        "dtype": "float32",
    }
    return settle_num_blocks(files, block_size=16, **{**defaults, **options})


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(CpuPlatform, "free_memory", lambda _: size)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 2 * 3 * 8 * 8 * 4),
        ({"num_key_value_heads": 2}, 2 * 3 * 2 * 8 * 4),
        ({"num_key_value_heads": 2, "head_dim": 16}, 2 * 3 * 2 * 16 * 4),
    ],
)
def test_a_token_needs_keys_and_values_of_every_layer(more: dict[str, int], expected: int) -> None:
    assert kv_bytes_per_token(CONFIG | more, "float32") == expected
    assert kv_bytes_per_token(CONFIG | more, "float16") == expected // 2


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"config\.json: num_hidden_layers is missing"):
        kv_bytes_per_token({"num_attention_heads": 8, "hidden_size": 64}, "float32")


@pytest.mark.parametrize(("length", "slots", "blocks"), [(64, 4, 17), (65, 4, 21), (1, 1, 2)])
def test_with_memory_enough_every_slot_can_be_full(files: ModelFiles, length: int, slots: int, blocks: int) -> None:
    assert settle(files, max_model_len=length, max_num_seqs=slots) == blocks


def test_memory_for_weights_and_cache_together_limits_the_blocks(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, block = num_parameters(files.weights) * 4, kv_bytes_per_token(files.config, "float32") * 16
    free(monkeypatch, 2 * (weights + 9 * block))
    assert settle(files, memory_share=0.5) == 9
    free(monkeypatch, 2 * (weights + 9 * block) - 2)
    assert settle(files, memory_share=0.5) == 8


def test_memory_for_less_than_one_sequence_is_told(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, block = num_parameters(files.weights) * 4, kv_bytes_per_token(files.config, "float32") * 16
    free(monkeypatch, weights + 5 * block)
    assert settle(files, memory_share=1.0) == 5
    free(monkeypatch, weights + 5 * block - 1)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization: 1 of .* max_model_len = 64"):
        settle(files, memory_share=1.0)


def test_an_override_counts_whatever_the_share_is_but_it_has_to_fit(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, block = num_parameters(files.weights) * 4, kv_bytes_per_token(files.config, "float32") * 16
    free(monkeypatch, weights + 50 * block)
    assert settle(files, override=5, memory_share=0.01) == 5
    assert settle(files, override=50, memory_share=0.01) == 50
    with pytest.raises(ValueError, match=r"num_gpu_blocks_override: 100000000 blocks take .* MiB, for 50 blocks"):
        settle(files, override=10**8)
    with pytest.raises(ValueError, match=r"num_gpu_blocks_override: 4 .* needs 5 blocks of 16"):
        settle(files, override=4)


def test_options_reach_the_configuration() -> None:
    args = EngineArgs(
        model="smollm2-135m",
        max_num_seqs=3,
        max_model_len=100,
        max_num_batched_tokens=7,
        max_waiting_requests=0,
        enable_prefix_caching=False,
        num_gpu_blocks_override=9,
    )
    fd_config = args.create_fd_config(show_progress=False)
    scheduler, cache = fd_config.scheduler_config, fd_config.cache_config
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.max_waiting_requests) == (3, 7, 0)
    assert (cache.num_blocks, cache.block_size, cache.enable_prefix_caching) == (9, 16, False)
