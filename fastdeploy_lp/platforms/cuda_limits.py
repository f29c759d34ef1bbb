"""Limits of Paddle's CUDA operators, by the compute capability of the device."""

from __future__ import annotations

from fastdeploy_lp.platforms.nvidia_driver import Capability

# bfloat16 on tensor cores.
LEAST: Capability = (8, 0)
# Kernels of `weight_only_linear` in Paddle 3.3, of devices that have bfloat16.
WEIGHT_ONLY: tuple[Capability, ...] = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0))
# KiB of shared memory that one thread block can reserve: "Shared Memory" in NVIDIA's CUDA C++ programming guide.
SHARED_MEMORY: dict[Capability, int] = {
    **dict.fromkeys([(8, 0), (8, 7)], 163),
    **dict.fromkeys([(8, 6), (8, 9), (12, 0), (12, 1)], 99),
    **dict.fromkeys([(9, 0), (10, 0), (10, 3), (11, 0)], 227),
}
# Of devices that are not known: what every device since 8.0 has.
LEAST_SHARED_MEMORY = 99
# The attention operator keeps a score for each token of a context, and the number of each block.
BYTES_PER_NUMBER = 4


def require_devices(capabilities: list[Capability]) -> None:
    """Raises ValueError unless all devices have bfloat16."""
    for place, capability in enumerate(capabilities):
        if capability < LEAST:
            raise ValueError(
                f"GPU {place} has compute capability {_shown(capability)}; the platform gpu needs {_shown(LEAST)} or "
                "later; FASTDEPLOY_LP_PLATFORM=cpu selects the CPU"
            )


def require_weight_only(capabilities: list[Capability]) -> None:
    """Raises ValueError unless Paddle has a product with 8-bit weights for all devices."""
    for capability in capabilities:
        if capability not in WEIGHT_ONLY:
            raise ValueError(
                f"quantization: w8a16 is not allowed on a GPU of compute capability {_shown(capability)}; Paddle's "
                f"operator has kernels for {', '.join(map(_shown, WEIGHT_ONLY))}"
            )


def require_context(capabilities: list[Capability], max_model_len: int, block_size: int) -> None:
    """Raises ValueError if the attention operator has no shared memory for the longest context on some device."""
    for capability in capabilities:
        longest = longest_context(capability, block_size)
        if max_model_len > longest:
            raise ValueError(
                f"max_model_len: {max_model_len} is not allowed on a GPU of compute capability {_shown(capability)}; "
                f"its shared memory holds the attention scores of {longest} tokens with block_size {block_size}"
            )


def longest_context(capability: Capability, block_size: int) -> int:
    """Returns the longest context, in tokens, for which `block_multihead_attention` finds shared memory."""
    numbers = SHARED_MEMORY.get(capability, LEAST_SHARED_MEMORY) * 1024 // BYTES_PER_NUMBER
    # A block of tokens needs one number more than it has tokens.
    whole, rest = divmod(numbers, block_size + 1)
    return whole * block_size + max(0, rest - 1)


def _shown(capability: Capability) -> str:
    return "{}.{}".format(*capability)
