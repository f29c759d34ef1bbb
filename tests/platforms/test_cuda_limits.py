"""Devices, products and contexts that Paddle's CUDA operators cannot compute, refused before the model loads."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpu_config import gpu_fd_config

from fastdeploy_lp.platforms import GpuPlatform
from fastdeploy_lp.platforms import gpu as gpu_module
from fastdeploy_lp.platforms.cuda_limits import longest_context


def refused(
    monkeypatch: pytest.MonkeyPatch,
    devices: list[tuple[int, int]],
    **config: Any,
) -> str | None:
    """Returns the message that refuses `gpu_fd_config(**config)` on these devices; None if it is accepted."""
    monkeypatch.setattr(gpu_module, "compute_capabilities", lambda count: devices[:count])
    monkeypatch.setattr(gpu_module, "device_count", lambda: len(devices))
    try:
        GpuPlatform().check_and_update_config(gpu_fd_config(**config))
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("device", "longest"), [((8, 0), 41086), ((8, 6), 24954), ((8, 9), 24954), ((9, 0), 57217), ((10, 0), 57217)]
)
def test_a_context_beyond_the_shared_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: tuple[int, int], longest: int
) -> None:
    """On a GPU, the operator would fail at the warm-up: "invalid argument"."""
    assert refused(monkeypatch, [device], max_model_len=longest, attention_backend="block") is None
    message = refused(monkeypatch, [device], max_model_len=longest + 1, attention_backend="block")
    assert message == (
        f"max_model_len: {longest + 1} is not allowed on a GPU of compute capability {device[0]}.{device[1]}; its "
        f"shared memory holds the attention scores of {longest} tokens with block_size 64"
    )


@pytest.mark.parametrize("backend", [None, "kernels"])
def test_our_kernels_have_no_longest_context(monkeypatch: pytest.MonkeyPatch, backend: str | None) -> None:
    assert refused(monkeypatch, [(8, 6)], max_model_len=1_000_000, attention_backend=backend) is None


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_the_longest_context_fills_the_shared_memory(block_size: int) -> None:
    def numbers(tokens: int) -> int:
        return tokens + -(-tokens // block_size)

    longest = longest_context((9, 0), block_size)
    assert 4 * numbers(longest) <= 227 * 1024 < 4 * numbers(longest + 1)


def test_a_device_that_is_not_known_counts_as_the_smallest() -> None:
    assert longest_context((13, 7), 64) == longest_context((8, 9), 64)


@pytest.mark.parametrize("device", [(7, 0), (7, 5), (6, 1)])
def test_a_device_without_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch, device: tuple[int, int]) -> None:
    message = refused(monkeypatch, [device])
    assert message is not None
    assert message.startswith(f"GPU 0 has compute capability {device[0]}.{device[1]}; the platform gpu needs 8.0 or")


@pytest.mark.parametrize("device", [(12, 0), (8, 7), (10, 3)])
def test_8_bit_weights_are_refused_where_paddle_has_no_kernel(
    monkeypatch: pytest.MonkeyPatch, device: tuple[int, int]
) -> None:
    assert refused(monkeypatch, [device]) is None
    assert refused(monkeypatch, [device], quantization="w8a16") == (
        f"quantization: w8a16 is not allowed on a GPU of compute capability {device[0]}.{device[1]}; Paddle's operator "
        "has kernels for 8.0, 8.6, 8.9, 9.0, 10.0"
    )


@pytest.mark.parametrize("device", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_8_bit_weights_are_accepted_elsewhere(monkeypatch: pytest.MonkeyPatch, device: tuple[int, int]) -> None:
    assert refused(monkeypatch, [device], quantization="w8a16") is None


def test_every_device_of_a_shared_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [(9, 0), (7, 5)]
    assert refused(monkeypatch, devices) is None
    message = refused(monkeypatch, devices, ranks=2)
    assert message is not None
    assert message.startswith("GPU 1 has compute capability 7.5")
