"""`--max-num-batched-tokens`: its default by platform."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.platforms import CpuPlatform, GpuPlatform
from fastdeploy_lp.startup import settled_config
from fastdeploy_lp.startup.engine_args import EngineArgs


class WithTheGpusDefault(CpuPlatform):
    default_max_num_batched_tokens = GpuPlatform.default_max_num_batched_tokens


@pytest.mark.parametrize(("platform", "tokens"), [(CpuPlatform, 512), (WithTheGpusDefault, 4096)])
def test_a_platform_has_its_own_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: type[CpuPlatform], tokens: int
) -> None:
    model = str(write_tiny_checkpoint(tmp_path))
    monkeypatch.setattr(settled_config, "current_platform", platform)
    for given, expected in ((None, tokens), (7, 7)):
        config = EngineArgs(model, max_num_batched_tokens=given).create_fd_config(show_progress=False)
        assert config.scheduler_config.max_num_batched_tokens == expected
