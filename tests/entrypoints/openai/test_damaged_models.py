"""A model that cannot be used is told in one line that names the file and the reason, without a traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.damage import LOAD, START, Damage
from support.server import free_port, server_command, server_environment

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.entrypoints.openai.api_server import main
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.model_runner import ModelRunner

# Found by the worker.
THROUGH_THE_COMMAND = "NaN"
SECONDS = 600.0
ENGINE = ["--max-num-seqs", "2", "--max-model-len", "64"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Conversions go to a folder of their own, the operators of this process come from the user's."""
    compiled_ops()
    monkeypatch.setenv("FASTDEPLOY_LP_CACHE", str(tmp_path / "cache"))


def made(damage: Damage, tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    return str(damage.make(folder))


def assert_told(line: str, damage: Damage, tmp_path: Path) -> None:
    for part in damage.expected:
        assert part.format(folder=tmp_path / "model") in line, line
    assert "\n" not in line.strip()


@pytest.mark.parametrize("name", START)
def test_the_server_ends_before_anything_is_loaded(
    name: str, tmp_path: Path, process_as_it_was: None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made(START[name], tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--model", model, "--port", str(free_port()), *ENGINE])
    said = capsys.readouterr()
    assert ended.value.code == 2
    (line,) = [each for each in said.err.splitlines() if each.startswith("error: ")]
    assert_told(line, START[name], tmp_path)
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize("name", LOAD)
def test_the_worker_says_why_it_cannot_load(name: str, tmp_path: Path) -> None:
    args = EngineArgs(model=made(LOAD[name], tmp_path), max_num_seqs=2, max_model_len=64)
    fd_config = args.create_fd_config(show_progress=False)
    with pytest.raises(CheckpointError) as caught:
        ModelRunner(fd_config, LogitsProcessorChain([], fd_config)).load_model()
    assert_told(str(caught.value), LOAD[name], tmp_path)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """How the real command ended, and the folder of the model; not in the empty cache of `own_cache`."""
    folder = tmp_path_factory.mktemp("damaged")
    model = made(LOAD[THROUGH_THE_COMMAND], folder)
    command = server_command("--model", model, "--port", str(free_port()), *ENGINE)
    environment = {**server_environment(), "TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment), folder


def test_the_command_says_so_and_ends(ended: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """Both processes take part; what the first one finds is told by the same line, as test_startup_errors.py checks."""
    done, folder = ended
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = [each for each in done.stderr.splitlines() if "error:" in each]
    assert_told(line, LOAD[THROUGH_THE_COMMAND], folder)
    assert not list(folder.glob("fastdeploy_lp-*"))
