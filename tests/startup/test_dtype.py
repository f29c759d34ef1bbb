"""`--dtype`: what it settles on each platform, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.registry import model_class
from fastdeploy_lp.platforms import CpuPlatform
from fastdeploy_lp.startup import settled_config
from fastdeploy_lp.startup.engine_args import EngineArgs


class HalfPlatform(CpuPlatform):
    """A device whose operators compute in float16."""

    name = "half"
    model_dtype = "float16"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


def settled(checkpoint: Path, dtype: str, **options: str) -> FDConfig:
    return EngineArgs(str(checkpoint), dtype=dtype, **options).create_fd_config(show_progress=False)


@pytest.mark.parametrize(
    ("given", "dtype", "cache"),
    [("auto", "float32", "float32"), ("float32", "float32", "float32"), ("bfloat16", "bfloat16", "float16")],
)
def test_what_is_settled_on_the_cpu(checkpoint: Path, given: str, dtype: str, cache: str) -> None:
    fd_config = settled(checkpoint, given)
    assert (fd_config.model_config.dtype, fd_config.cache_config.dtype) == (dtype, cache)
    assert settled(checkpoint, given, kv_cache_dtype="float32").cache_config.dtype == "float32"


def test_what_the_cpu_does_not_compute_is_refused(checkpoint: Path) -> None:
    message = "^dtype: float16 is not allowed on the platform cpu; allowed are auto, float32 and bfloat16$"
    with pytest.raises(ValueError, match=message):
        settled(checkpoint, "float16")


@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
def test_two_roundings_are_refused(checkpoint: Path, quantization: str) -> None:
    with pytest.raises(ValueError, match=r"^dtype: bfloat16 is not allowed with quantization"):
        settled(checkpoint, "bfloat16", quantization=quantization)
    assert settled(checkpoint, "float32", quantization=quantization).model_config.dtype == "float32"


def test_another_platforms_type_is_the_only_one_there(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_config, "current_platform", HalfPlatform)
    assert settled(checkpoint, "auto").model_config.dtype == "float16"
    assert settled(checkpoint, "float16").model_config.dtype == "float16"
    for dtype in ("bfloat16", "float32"):
        with pytest.raises(ValueError, match=f"^dtype: {dtype} is not allowed .* half; allowed are auto and float16$"):
            settled(checkpoint, dtype)


@pytest.mark.parametrize(("dtype", "lines"), [("auto", 0), ("bfloat16", 1)])
def test_rounding_a_checkpoint_is_logged_once(
    checkpoint: Path, dtype: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    fd_config = settled(checkpoint, dtype)
    with caplog.at_level(logging.INFO, "fastdeploy_lp"), open_weights([checkpoint / "model.safetensors"]) as weights:
        model_class(fd_config.model_config.hf_config)(fd_config, weights)
    assert caplog.text.count("dtype bfloat16: the checkpoint's weights are rounded; they are F32") == lines
