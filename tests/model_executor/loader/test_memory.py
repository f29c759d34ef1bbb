from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.load_memory import EMBEDDING_MEBIBYTES
from support.server import server_environment

from fastdeploy_lp.platforms import current_platform


def test_a_load_takes_little_more_memory_than_the_model_keeps(tmp_path: Path) -> None:
    """For each format of packed weights; with a copy of the embedding in memory each of them would fail."""
    environment = server_environment() | current_platform().worker_environment()
    command = [sys.executable, "-m", "support.load_memory", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert all(load["peak"] <= 1.2 * load["kept"] for load in found["loads"].values()), found
    assert all(made["peak"] < EMBEDDING_MEBIBYTES for made in found["conversions"].values()), found
