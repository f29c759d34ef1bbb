"""Folders of sockets: private, gone with their server, and found by the next one if it was killed."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.server import server_environment

from fastdeploy_lp.engine.client.worker_socket import PREFIX, SocketFolder

KILLED = """
import os, signal
from fastdeploy_lp.engine.client.worker_socket import SocketFolder
folder = SocketFolder()
folder.socket.write_text("")
print(folder.socket, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_goes_when_it_is_told_to(temporary: Path) -> None:
    folder = SocketFolder()
    assert folder.socket.parent.parent == temporary
    assert stat.S_IMODE(folder.socket.parent.stat().st_mode) == 0o700
    folder.remove()
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_that_of_a_killed_server_is_removed_and_those_of_living_ones_stay(temporary: Path) -> None:
    environment = server_environment() | {"TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, env=environment)
    abandoned = Path(done.stdout.strip())
    assert abandoned.exists()
    assert abandoned.parent.name.startswith(PREFIX)
    living, own = SocketFolder(), SocketFolder()
    assert not abandoned.parent.exists()
    assert living.socket.parent.exists()
    assert own.socket.parent.exists()
    living.remove()
    own.remove()


def test_a_link_with_such_a_name_is_not_followed(temporary: Path) -> None:
    (temporary / "precious").mkdir()
    (temporary / f"{PREFIX}x").symlink_to(temporary / "precious")
    SocketFolder().remove()
    assert (temporary / "precious").exists()
