"""Rules of tensor parallelism for both processes: which models ranks can share, and how heads are distributed."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.checkpoint.errors import CheckpointError

RANK_LOST = 4
"""Exit status of a worker that had to end because another rank of its group was gone."""


def require_divisible(hf_config: dict[str, Any], ranks: int) -> None:
    """Raise ValueError naming the field of `config.json`, unless each of `ranks` can have an equal part of the model.

    Key and value heads that are fewer than the ranks are held several times.
    """
    if ranks == 1:
        return
    heads = positive_int(hf_config, "num_attention_heads")
    kv_heads = positive_int(hf_config, "num_key_value_heads", heads)
    inner = positive_int(hf_config, "intermediate_size")
    even = [n for n in range(1, heads + 1) if heads % n == inner % n == 0]
    allowed = [n for n in even if kv_heads % n == 0 or n % kv_heads == 0]
    if ranks not in allowed:
        raise CheckpointError(
            f"tensor_parallel_size: {ranks} is not allowed for this model; num_attention_heads {heads}, "
            f"num_key_value_heads {kv_heads} and intermediate_size {inner} allow {', '.join(map(str, allowed))}"
        )


def part_of_heads(kv_heads: int, ranks: int) -> int:
    """Key and value heads of one rank: an equal part of them, or one that several ranks hold."""
    return max(1, kv_heads // ranks)
