"""Which models ranks can share."""

from __future__ import annotations

from typing import Any

import pytest
from support.tiny import GOLDEN

from fastdeploy_lp.config.tensor_parallel import part_of_heads, require_divisible
from fastdeploy_lp.startup.engine_args import EngineArgs

SMOLLM2: dict[str, Any] = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536}


@pytest.mark.parametrize("ranks", [1, 3])
def test_even_parts_are_allowed(ranks: int) -> None:
    require_divisible(SMOLLM2, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 9, 10])
def test_what_does_not_divide_is_refused_with_what_does(ranks: int) -> None:
    with pytest.raises(ValueError, match=f"tensor_parallel_size: {ranks} is not allowed.*allow 1, 3$"):
        require_divisible(SMOLLM2, ranks)


@pytest.mark.parametrize(("kv_heads", "ranks", "part"), [(8, 1, 8), (8, 4, 2), (2, 2, 1), (2, 8, 1)])
def test_heads_of_keys_and_values_are_divided_or_held_several_times(kv_heads: int, ranks: int, part: int) -> None:
    require_divisible({"num_attention_heads": 8, "num_key_value_heads": kv_heads, "intermediate_size": 64}, ranks)
    assert part_of_heads(kv_heads, ranks) == part


@pytest.mark.parametrize("ranks", [0, -1, True, "2"])
def test_the_option_is_a_positive_number(ranks: Any) -> None:
    with pytest.raises(ValueError, match=r"tensor_parallel_size: .* must be an integer of at least 1"):
        EngineArgs(model="x", tensor_parallel_size=ranks)


def test_the_option_is_held_against_the_model() -> None:
    args = EngineArgs(model=str(GOLDEN / "tiny-llama"), skip_tokenizer_init=True, tensor_parallel_size=3)
    with pytest.raises(ValueError, match="tensor_parallel_size: 3 is not allowed"):
        args.create_fd_config(show_progress=False)
