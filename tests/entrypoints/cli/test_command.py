"""The `fastdeploy-lp` command and the modules that can be run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.forks import Program, run_forks, serve
from support.forks import command as command_program
from support.server import REPOSITORY, free_port, server_environment

from fastdeploy_lp.entrypoints.cli import command
from fastdeploy_lp.entrypoints.cli.command import SUBCOMMANDS, main
from fastdeploy_lp.logits_processor import BUILTIN
from fastdeploy_lp.version import __version__

BENCH = ("http_client", "load", "serving")
COMMAND = str(Path(sys.executable).with_name("fastdeploy-lp"))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """From the root of the checkout, as a user would."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)


def test_version() -> None:
    done = run(COMMAND, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_subcommands(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (0, "")
    for subcommand in SUBCOMMANDS:
        assert f"  {subcommand.name} " in shown.out
        assert subcommand.summary in shown.out


# `serve` sets up this process's logging; its own help is read below.
OTHERS = [each.name for each in SUBCOMMANDS if each.name != "serve"]


@pytest.mark.parametrize("name", OTHERS)
def test_every_subcommand_has_its_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "word", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: fastdeploy-lp {name} ")


@pytest.mark.parametrize("name", OTHERS)
def test_misspelled_option_is_one_line_with_the_right_spelling_and_a_pointer(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "word", "--hepl=secret"])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert shown.err == f"error: unknown option --hepl; did you mean --help? (see fastdeploy-lp {name} --help)\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: SUBCOMMAND"),
        (["benhc", "--model", "m"], "unknown subcommand 'benhc'; did you mean bench?"),
        (["--serve"], "unknown subcommand '--serve'; did you mean serve?"),
        (["Serve"], "unknown subcommand 'Serve'; did you mean serve?"),
        (["smollm2-135m"], "unknown subcommand 'smollm2-135m'"),
        ([""], "unknown subcommand ''"),
    ],
)
def test_unknown_subcommand_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert shown.err == f"error: {reason} (see fastdeploy-lp --help)\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["check"], "the following arguments are required: SPEC"),
        (["collect-env", "word"], "unexpected argument 'word'"),
        (
            ["new-processor", "mine", "--dialect", "nativ"],
            "argument --dialect: 'nativ' is not allowed; did you mean native?; allowed: "
            "native, vllm-mrv2, vllm-v1, request, plugin, torch, wasm",
        ),
        (["bench", "--max-tokens", "0"], "argument --max-tokens: 0 is below 1"),
        (["chat", "--model", "m", "--zzz", "1"], "unknown option --zzz"),
    ],
)
def test_usage_error_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {reason} (see fastdeploy-lp {arguments[0]} --help)\n"


def test_measuring_loads_neither_engine_nor_server() -> None:
    """The load generator measures every server the same way, this one too."""
    program = (
        "import sys; from fastdeploy_lp.entrypoints.bench import serving; "
        "print(sorted(name for name in sys.modules if name.startswith('fastdeploy_lp')), "
        "[name for name in ('pydantic', 'fastapi', 'zmq', 'tokenizers', 'numpy') if name in sys.modules])"
    )
    own = [
        "",
        ".entrypoints",
        ".entrypoints.bench",
        *(f".entrypoints.bench.{name}" for name in BENCH),
        ".entrypoints.server_address",
        ".entrypoints.usage",
        ".request",
        ".request.suggestion",
        ".version",
    ]
    done = run(sys.executable, "-c", program)
    assert done.stdout.strip() == f"{[f'fastdeploy_lp{name}' for name in own]} []", done.stderr


@pytest.mark.parametrize("specs", [[], ["LogitBiasLogitsProcessor"]])
def test_processors_are_a_table_with_a_line_each(capsys: pytest.CaptureFixture[str], specs: list[str]) -> None:
    main(["processors", *specs])
    head, first, *others = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "from", "arguments", "effect"]
    assert re.fullmatch(r"LogitBiasLogitsProcessor +builtin  logit_bias +`\{\"logit_bias\": .*\.", first)
    assert [line.split()[0] for line in others] == ([] if specs else list(BUILTIN)[1:])


def test_processors_as_json_have_the_schemas_of_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    main(["processors", "mine=MinPLogitsProcessor", "LogitBiasLogitsProcessor", "--json"])
    mine, bias = json.loads(capsys.readouterr().out)
    assert (mine["order"], mine["name"], mine["spec"]) == (0, "mine", "mine=MinPLogitsProcessor")
    assert (bias["source"], bias["dialect"], bias["mandatory"]) == ("builtin", "native", False)
    assert "logit_bias" in bias["parameters"]["properties"]


def test_output_may_be_read_in_part() -> None:
    done = run("bash", "-c", f"{sys.executable} -m fastdeploy_lp processors --json | head -n 1")
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_ctrl_c_ends_a_subcommand_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it arrives, also in an import."""

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["processors"])
    assert ended.value.code == 130


def test_mandatory_processors_are_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    main(["processors", "LogitBiasLogitsProcessor", "MinPLogitsProcessor", "--mandatory", "MinPLogitsProcessor"])
    shown = capsys.readouterr().out
    assert "MinPLogitsProcessor       builtin, mandatory  " in shown
    assert shown.count("mandatory") == 1
    with pytest.raises(SystemExit):
        main(["processors", "LogitBiasLogitsProcessor", "--mandatory", "MinP"])
    assert capsys.readouterr().err.startswith("error: mandatory: 'MinP' is not declared")


def test_a_processor_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["processors", "Nothing"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: logits_processors: 'Nothing'")


# The second and the third name are those of a checkout.
MODULES = (
    "fastdeploy_lp.entrypoints.openai.api_server",
    "entrypoints.openai.api_server",
    "api_server",
    "fastdeploy_lp",
)
AS_MODULE = """
import runpy, sys
sys.argv[:] = ["", *{arguments!r}]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def test_server_runs_as_a_module(tmp_path: Path) -> None:
    """And tells mistakes in one line; in forks of one process, each as a program of its own."""
    options = [["serve", "--help"] if module == "fastdeploy_lp" else ["--help"] for module in MODULES]
    modules = [
        Program(AS_MODULE.format(module=module, arguments=arguments), paths=[str(REPOSITORY)])
        for module, arguments in zip(MODULES, options, strict=True)
    ]
    mistaken = serve("--model", "nowhere", "--logits-processors", "Nothing")
    programs = [command_program("serve", "--help"), mistaken, *modules]
    helped, mistake, *others = run_forks(programs, tmp_path, server_environment())
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: fastdeploy-lp serve ")
    assert "--logits-processors" in helped.stdout
    assert (mistake.returncode, mistake.stdout) == (2, "")
    (line,) = mistake.stderr.splitlines()
    assert line.startswith("error: logits_processors: 'Nothing'")
    for module, done in zip(MODULES, others, strict=True):
        assert (done.returncode, done.stderr) == (0, ""), module
        assert done.stdout == helped.stdout, module


HERE = """
from fastdeploy_lp.openai.logits_processor import LogitsProcessor


class OfThisFolder(LogitsProcessor):
    def __init__(self, fd_config):
        pass

    def update_state(self, share_inputs):
        pass

    def apply(self, logits):
        return logits
"""


@pytest.mark.parametrize("command", [[COMMAND], [sys.executable, "-m", "fastdeploy_lp"]], ids=["script", "module"])
def test_processors_of_the_current_folder_are_found(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "of_this_folder.py").write_text(HERE)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def served(**variables: str) -> str:
        options = ["serve", "nowhere", "--port", str(free_port()), "--logits-processors", "of_this_folder:OfThisFolder"]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment | variables
        )
        assert done.returncode == 2
        return done.stderr

    # The processor is found before the model, which is not.
    assert served().startswith("error: 'nowhere': no such model")
    # Told once: what decides is the same for both.
    if command == [COMMAND] and sys.version_info >= (3, 11):
        assert "names the module 'of_this_folder', which cannot be found" in served(PYTHONSAFEPATH="1")
