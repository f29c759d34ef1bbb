"""What `fastdeploy-lp new-processor` writes: installed in a fresh environment, tested, checked and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fresh_venv import FreshVenv
from support.server import ServerProcess
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.entrypoints.scaffold.package import DIALECTS, ProcessorPackage
from fastdeploy_lp.logits_processor.testing import CHECK_NAMES

# Their tests and then their checks, in one process, which loads Paddle and torch once. The tests run every check, and
# the reports are kept; so the command needs to show only that it finds each by its name.
CHECKS = """
import contextlib, io, json, sys
import pytest
folders = [name.replace("_", "-") for name in sys.argv[1:]]
reports = []
def kept(*arguments, **options):
    reports.append(check_processor(*arguments, **options))
    return reports[-1]
class Keeping:
    def pytest_sessionstart(self):
        global check_processor
        # pytest rewrites only what is imported after it.
        from fastdeploy_lp.logits_processor import testing
        check_processor, testing.check_processor = testing.check_processor, kept
with contextlib.redirect_stdout(io.StringIO()) as shown:
    status = pytest.main(["-q", "-W", "error", "--import-mode=importlib", *folders], plugins=[Keeping()])
of_tests = [report.as_dict() for report in reports]
from fastdeploy_lp.entrypoints.cli import main
from fastdeploy_lp.logits_processor.testing import CHECK_NAMES
others = [word for name in CHECK_NAMES if name != "contract" for word in ("--skip", name)]
commands = []
for name in sys.argv[1:]:
    given = json.dumps([{"token_id": 42}, {"token_id": 7, "boost": -2}])
    with contextlib.redirect_stdout(io.StringIO()) as told:
        main(["check", name, "--params", given, "--strict", "--json", *others])
    commands.append(json.loads(told.getvalue()))
print(json.dumps({"status": int(status), "shown": shown.getvalue(), "reports": of_tests, "commands": commands}))
"""
NAMES = tuple(f"boost_{dialect.replace('-', '_')}" for dialect in DIALECTS)
SHOWN_DIALECTS = ["native", "vllm-mrv2", "vllm-v1", "request", "plugin-dict", "torch"]
TOKEN = 70


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a package for each dialect."""
    path = tmp_path_factory.mktemp("written")
    for dialect in DIALECTS:
        main(["new-processor", f"boost-{dialect}", "--dialect", dialect, "--directory", str(path)])
    return path


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> FreshVenv:
    """All of them installed beside the server."""
    made = FreshVenv(tmp_path_factory.mktemp("venv"))
    made.install(folder)
    return made


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, fresh: FreshVenv) -> Iterator[ServerProcess]:
    """All of them in one chain, found by their entry points."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model"))
    environment = fresh.environment(*NAMES)
    with ServerProcess(model=model, own_metrics_port=False, python=fresh.python, env=environment) as running:
        yield running


@pytest.fixture(scope="module")
def checked(fresh: FreshVenv, folder: Path) -> dict[str, Any]:
    """What pytest made of the packages' own tests, the reports of their checks, and what the command found."""
    done = fresh.run(fresh.python, "-W", "error", "-c", CHECKS, *NAMES, cwd=folder, plugins=NAMES)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_their_own_tests_pass(checked: dict[str, Any]) -> None:
    assert checked["status"] == 0, checked["shown"]
    assert "24 passed" in checked["shown"]


def test_their_checks_are_green(checked: dict[str, Any]) -> None:
    for each in checked["reports"]:
        assert [found["check"] for found in each["findings"]] == list(CHECK_NAMES)
        assert {found["outcome"] for found in each["findings"] if found["check"] != "speed"} == {"pass"}
    assert [each["dialect"] for each in checked["reports"]] == SHOWN_DIALECTS


def test_the_command_checks_each_by_its_name(checked: dict[str, Any]) -> None:
    found = checked["commands"]
    assert [each["name"] for each in found] == list(NAMES)
    assert [each["dialect"] for each in found] == SHOWN_DIALECTS
    for each in found:
        outcomes = {finding["check"]: finding["outcome"] for finding in each["findings"]}
        assert outcomes == dict.fromkeys(CHECK_NAMES, "skipped") | {"contract": "pass"}


@pytest.mark.parametrize("name", NAMES)
def test_a_request_uses_it_over_http(serving: ServerProcess, name: str) -> None:
    def ask(params: object) -> httpx.Response:
        body = {"prompt": "the dog", "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        chosen = {"logits_processors": {name: params}}
        return httpx.post(f"{serving.url}/v1/completions", json=body | chosen, timeout=300)

    answer = ask({"token_id": TOKEN, "boost": 1000})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == [TOKEN] * 4
    refused = ask({"token_id": "no"})
    assert refused.status_code == 400
    assert name in refused.json()["error"]["param"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Boost",
        "1st",
        "a b",
        "../up",
        "a/b",
        "-a",
        "a-",
        "a--b",
        "a.b",
        "ü",
        "class",
        "json",
        "numpy",
        "x" * 65,
        "a\n",
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new-processor", "--directory", str(tmp_path), "--", name])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: name: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["boost", "my-boost", "my_boost2", "x" * 64])
def test_names_that_can_be_are_accepted(name: str) -> None:
    package = ProcessorPackage(name)
    assert package.class_name.isidentifier()
    assert f"{package.module}/processor.py" in package.files()


def test_a_dialect_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ValueError, match="dialect: 'jax' is none of native, vllm-mrv2, vllm-v1, request, plugin, torch"
    ):
        ProcessorPackage("boost", "jax")


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    there = tmp_path / "my-boost"
    if kind == "folder":
        there.mkdir()
        (there / "README.md").write_text("mine")
    elif kind == "file":
        there.write_text("mine")
    else:
        there.symlink_to(tmp_path / "nowhere")
    with pytest.raises(SystemExit) as ended:
        main(["new-processor", "my-boost", "--directory", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {there} is there already; nothing was written\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-boost"]
    if kind == "folder":
        assert [(path.name, path.read_text()) for path in there.iterdir()] == [("README.md", "mine")]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["new-processor", "my-boost", "--directory", str(tmp_path / "file")])
    assert ended.value.code == 2
    assert "Not a directory" in capsys.readouterr().err
