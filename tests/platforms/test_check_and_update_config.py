"""What a platform may change of the configuration before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.platforms import CpuPlatform
from fastdeploy_lp.startup.engine_args import EngineArgs

Change = Callable[[FDConfig], FDConfig]


class Changing(CpuPlatform):
    """Does with the configuration what a test wants."""

    name = "changing"

    def __init__(self, change: Change) -> None:
        self._change = change

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        return self._change(fd_config)


@pytest.fixture
def settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FDConfig]:
    """The configuration of a tiny model on a platform that makes this change."""
    model = str(write_tiny_checkpoint(tmp_path))

    def settled(change: Change, **options: int) -> FDConfig:
        monkeypatch.setattr("fastdeploy_lp.startup.settled_config.current_platform", lambda: Changing(change))
        args = EngineArgs(model=model, **{"max_num_seqs": 2, "max_model_len": 64, **options})
        return args.create_fd_config(show_progress=False)

    return settled


def with_cache(**changes: int) -> Change:
    return lambda fd_config: replace(fd_config, cache_config=replace(fd_config.cache_config, **changes))


def with_classes(**names: str) -> Change:
    return lambda fd_config: replace(fd_config, device_config=replace(fd_config.device_config, **names))


def test_one_that_changes_nothing_leaves_its_name(settle: Callable[..., FDConfig]) -> None:
    seen: list[FDConfig] = []

    def look(fd_config: FDConfig) -> FDConfig:
        seen.append(fd_config)
        return fd_config

    settled = settle(look)
    assert len(seen) == 1
    assert seen[0].cache_config.num_blocks == 0
    assert settled.device_config.platform == "changing"
    assert settled.cache_config.num_blocks == 1 + 2 * 64 // settled.cache_config.block_size


@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_blocks_are_counted_in_its_size(settle: Callable[..., FDConfig], block_size: int) -> None:
    cache = settle(with_cache(block_size=block_size)).cache_config
    assert (cache.block_size, cache.num_blocks) == (block_size, 1 + 2 * 64 // block_size)


def test_its_number_of_blocks_wins(settle: Callable[..., FDConfig]) -> None:
    assert settle(with_cache(num_blocks=7)).cache_config.num_blocks == 7
    assert settle(with_cache(num_blocks=7), num_gpu_blocks_override=9).cache_config.num_blocks == 7
    assert settle(with_cache(), num_gpu_blocks_override=9).cache_config.num_blocks == 9
    with pytest.raises(ValueError, match="one sequence of max_model_len = 64 tokens needs"):
        settle(with_cache(num_blocks=2))


def test_names_of_classes_reach_the_worker(settle: Callable[..., FDConfig]) -> None:
    names = {
        "worker_class": "a:B",
        "model_runner_class": "c:D",
        "attention_backend": "e:F",
        "communicator_class": "g:H",
    }
    settled = settle(with_classes(**names))
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(settled), type=FDConfig)
    assert sent.device_config == replace(settled.device_config, **names, platform="changing")


def test_what_it_refuses_is_told(settle: Callable[..., FDConfig]) -> None:
    def refuse(fd_config: FDConfig) -> FDConfig:
        raise ValueError("quantization: not here")

    with pytest.raises(ValueError, match="quantization: not here"):
        settle(refuse)
