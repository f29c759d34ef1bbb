"""Number of KV-cache blocks: enough for every slot, if memory allows."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.checkpoint import CheckpointError, ModelFiles, num_parameters
from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.config.tensor_parallel import part_of_heads
from fastdeploy_lp.platforms import current_platform

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MEBIBYTE = 1 << 20


def settle_num_blocks(
    files: ModelFiles,
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    dtype: str,
    override: int | None,
    memory_share: float,
    ranks: int = 1,
    workers: int = 1,
    draft: ModelFiles | None = None,
) -> int:
    """Blocks of the cache, the null block included.

    `override` blocks if that is given; else enough for every slot at full length, at most the number that fits beside
    the weights into `memory_share` of the memory that is free now. `dtype` is the element type of keys and values. Of
    `ranks` that share the model each holds its part of weights and blocks, on a separate device or all on the host;
    each of `workers` holds all of them, and shares the host with the others. `draft` is a second model
    with as many blocks.

    Raises ValueError naming the option when not even one sequence of full length fits.
    """
    per_sequence = -(-max_model_len // block_size)
    if override is not None and override <= per_sequence:
        raise ValueError(
            f"num_gpu_blocks_override: {override} is not allowed; one sequence of max_model_len = {max_model_len} "
            f"tokens needs {per_sequence + 1} blocks of {block_size}, one of which stays empty"
        )
    wanted = 1 + max_num_seqs * per_sequence
    bytes_per_block = _bytes_per_token(files, dtype, ranks) * block_size
    platform = current_platform()
    free = platform.free_memory() // (ranks * workers if platform.computes_on_host else 1)
    # At most, since quantized weights are loaded as others.
    weights = num_parameters(files.weights) * ELEMENT_BYTES[platform.model_dtype] // ranks
    if draft is not None:
        bytes_per_block += _bytes_per_token(draft, dtype) * block_size
        weights += num_parameters(draft.weights) * ELEMENT_BYTES[platform.model_dtype]
    if override is not None:
        _require_room(override, bytes_per_block, free - weights)
        return override
    affordable = int(free * memory_share - weights) // bytes_per_block
    if affordable <= per_sequence:
        needed = (per_sequence + 1) * bytes_per_block
        raise ValueError(
            f"gpu_memory_utilization: {memory_share:g} of {free // MEBIBYTE} MiB free memory does not hold the "
            f"weights ({weights // MEBIBYTE} MiB) and the KV cache of one sequence ({needed // MEBIBYTE} MiB at "
            f"max_model_len = {max_model_len}); give a larger share or a smaller max_model_len"
        )
    return min(wanted, affordable)


def _require_room(override: int, bytes_per_block: int, free: int) -> None:
    if override * bytes_per_block > free:
        raise ValueError(
            f"num_gpu_blocks_override: {override} blocks take {override * bytes_per_block // MEBIBYTE} MiB; the free "
            f"memory beside the weights is {max(free, 0) // MEBIBYTE} MiB, for {max(free, 0) // bytes_per_block} blocks"
        )


def _bytes_per_token(files: ModelFiles, dtype: str, ranks: int = 1) -> int:
    try:
        return kv_bytes_per_token(files.config, dtype, ranks)
    except CheckpointError as error:
        raise CheckpointError(f"{files.directory}: {error}") from None


def kv_bytes_per_token(config: dict[str, Any], dtype: str, ranks: int = 1) -> int:
    """Bytes of keys and values that one token needs in all layers, on each of `ranks` that share the model.

    Raises CheckpointError (a ValueError) for a field that is missing or no size.
    """
    heads = positive_int(config, "num_attention_heads")
    kv_heads = part_of_heads(positive_int(config, "num_key_value_heads", heads), ranks)
    head_dim = positive_int(config, "head_dim", positive_int(config, "hidden_size") // heads)
    numbers = 2 * kv_heads * head_dim
    if config.get("kv_lora_rank") is not None:
        # Latent attention: keys and values are stored expanded, for every head.
        key_dim = positive_int(config, "qk_nope_head_dim") + positive_int(config, "qk_rope_head_dim")
        numbers = part_of_heads(heads, ranks) * (key_dim + positive_int(config, "v_head_dim"))
    return positive_int(config, "num_hidden_layers") * numbers * ELEMENT_BYTES[dtype]
