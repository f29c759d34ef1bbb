"""The pages on writing processors: every block of code is run as it is printed, but for the address."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support.command import run_here
from support.printed_program import printed_by
from support.server import REPOSITORY, ServerProcess, server_environment
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest

PAGES = ("logits-processors", "authors-guide", "coming-from-vllm")
DOCUMENTS = {page: (REPOSITORY / "docs" / f"{page}.md").read_text() for page in PAGES}
CONTRACT, GUIDE, FROM_VLLM = PAGES
PRINTED_URL = "http://127.0.0.1:8180"
COMMAND = "PYTHONPATH=. .venv/bin/fastdeploy-lp "


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENTS[page], re.DOTALL | re.MULTILINE)


def modules(page: str) -> dict[str, str]:
    """File names of the blocks that are files, and their contents."""
    named = [re.match(r"# file: (\S+)\n", block) for block in code_blocks(page, "python")]
    return {found.group(1): found.string for found in named if found is not None}


def program_of(page: str) -> str:
    """The blocks that make up the page's program, in order."""
    return "\n".join(block for block in code_blocks(page, "python") if block.startswith("# run\n"))


def commands(page: str, subcommand: str) -> list[list[str]]:
    """The words after `fastdeploy-lp SUBCOMMAND` of the page's commands."""
    found = [block.replace("\\\n", "") for block in code_blocks(page, "bash")]
    start = f"{COMMAND}{subcommand} "
    return [shlex.split(block.removeprefix(start)) for block in found if block.startswith(start)]


def rows(page: str, heading: str) -> list[tuple[str, str]]:
    """The cells of the first table of a section."""
    table = DOCUMENTS[page].partition(f"\n## {heading}\n")[2].partition("\n|---")[2].partition("\n\n")[0]
    return re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE)


def named(pattern: str, cell: str) -> list[str]:
    return re.findall(rf"`({pattern})[^`]*`", cell)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Holds the modules of all pages, and is on the import path."""
    made = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        for name, content in modules(page).items():
            (made / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(made)
        yield made


@pytest.fixture(scope="module")
def page_server(folder: Path) -> Iterator[ServerProcess]:
    """One server for the pages that print the command of theirs: with the options of all of these commands."""
    printed = [words for page in PAGES for words in commands(page, "serve")]
    assert all(words[:3] == ["smollm2-135m", "--port", "8180"] for words in printed)
    path = f"{folder}{os.pathsep}{server_environment()['PYTHONPATH']}"
    options = [word for words in printed for word in words[3:]]
    with ServerProcess(*options, own_metrics_port=False, env={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture
def run_program(page_server: ServerProcess) -> Callable[[str], list[str]]:
    """Runs a page's program against the server and returns the printed lines."""

    def run(page: str) -> list[str]:
        return printed_by(program_of(page).replace(PRINTED_URL, page_server.url)).splitlines()

    return run


def run_bash(command: str, server: ServerProcess) -> str:
    environment = {**os.environ, "SERVER": server.url}
    done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "files", "parts", "shell"),
    [(CONTRACT, 10, 10, 2), (GUIDE, 3, 5, 1), (FROM_VLLM, 2, 3, 3)],
)
def test_no_block_of_code_is_left_out_of_these_tests(page: str, files: int, parts: int, shell: int) -> None:
    assert len(modules(page)) == files
    assert program_of(page).count("# run\n") == parts
    assert len(code_blocks(page, "bash")) == shell
    assert len(re.findall("^ *```", DOCUMENTS[page], re.MULTILINE)) == 2 * (files + parts + shell)


@pytest.mark.usefixtures("folder")
def test_the_program_runs_with_the_modules_beside_it() -> None:
    program = program_of(CONTRACT)
    lines = printed_by(program).splitlines()
    # The error that the document quotes behind its `print`.
    (quoted,) = re.findall(r"print\(error\)  # (.*)", program)
    assert quoted in lines
    names = [
        "LogitBiasLogitsProcessor",
        "second",
        "BanTokens",
        "Greeting",
        "SurpriseLimit",
        "Opposite",
        "OnlyToken",
        "TargetToken",
        "NoImmediateRepeat",
        "scale",
    ]
    names += ["temperature", "ForcedSequenceLogitsProcessor", "NoDigits", "LookedUp", "Doubtful"]
    listed = [line.split()[:2] for line in lines if re.match(r"\d+ ", line)]
    assert listed == [[str(order), name] for order, name in enumerate(names)]


def test_the_curl_line_selects_by_name(server: ServerProcess) -> None:
    (command,) = [block for block in code_blocks(CONTRACT, "bash") if "chat/completions" in block]
    assert '"content":"::::"' in run_bash(command, server)


def test_the_curl_line_lists_the_declared_processors(server: ServerProcess) -> None:
    (command,) = [block for block in code_blocks(CONTRACT, "bash") if "chat/completions" not in block]
    assert '"name":"LogitBiasLogitsProcessor"' in run_bash(command, server)


# The guide for authors


def test_the_guides_processors_do_what_it_says(run_program: Callable[[str], list[str]]) -> None:
    printed = "\n".join(run_program(GUIDE))
    plain, steps = re.split(r"\n(?=Here are)", printed.partition("The capital")[0])
    assert re.search(r"\d", plain)
    assert not re.search(r"\d", steps)
    one, two, sea, swapped = printed[printed.index("The capital") :].splitlines()
    assert one == "The capital of France is Paris."
    assert two.startswith("The capital of France is Paris. It's a city")
    assert [text.count(".") for text in (one, two, sea)] == [1, 2, 1]
    assert f"# {swapped}\n" in DOCUMENTS[GUIDE]


@pytest.mark.parametrize(
    ("spec", "params"),
    [
        ("no_digits:NoDigits", '{"no_digits": true}'),
        ("sentences:Sentences", '{"sentences": 1}'),
        ("swap:Swap", '{"swap": [42, 7], "swap_times": 2}'),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_guides_processors_keep_the_contract(spec: str, params: str, capsys: pytest.CaptureFixture[str]) -> None:
    # How fast they are depends on the machine.
    main(["check", spec, "--params", params, "--skip", "speed"])
    assert " 0 failed" in capsys.readouterr().out


# The page for those who know vLLM


def test_the_processor_moves_as_the_page_says(run_program: Callable[[str], list[str]]) -> None:
    plain, refusal = run_program(FROM_VLLM)
    assert plain.startswith("The capital of France is Paris.")
    (quoted,) = re.findall(r'print\(error.body\["message"\]\)  # (.*) …', DOCUMENTS[FROM_VLLM])
    assert refusal.startswith(quoted)


@pytest.mark.usefixtures("folder")
def test_the_moved_processor_keeps_the_contract(capfd: pytest.CaptureFixture[str]) -> None:
    ((*words,),) = commands(FROM_VLLM, "check")
    assert "--vllm-compat" in words
    with vllm_stand_ins():
        done = run_here(capfd, "check", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_metrics_have_the_names_of_vllm(page_server: ServerProcess) -> None:
    (command,) = [block for block in code_blocks(FROM_VLLM, "bash") if "/metrics" in block]
    assert len(run_bash(command, page_server).splitlines()) == 2
    listed = [name for _, cell in rows(FROM_VLLM, "Metrics") for name in named("vllm:[a-z0-9_]+", cell)]
    assert len(listed) >= 12
    samples = httpx.get(page_server.metrics_url).text
    assert [name for name in listed if not re.search(rf"^# TYPE {name} ", samples, re.MULTILINE)] == []


def test_options_that_are_the_same_exist_and_those_without_a_counterpart_do_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    offered = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out.partition("\n\n")[0]))
    require_counterparts(rows(FROM_VLLM, "Options"), "--[a-z][a-z-]+", offered)


def test_fields_that_are_the_same_exist_and_those_without_a_counterpart_do_not() -> None:
    require_counterparts(rows(FROM_VLLM, "Request fields"), "[a-z][a-z_]+", set(ChatCompletionRequest.model_fields))


def require_counterparts(table: list[tuple[str, str]], pattern: str, offered: set[str]) -> None:
    """Every name on the left has the counterpart that the right cell tells: itself, others, or none."""
    assert len(table) >= 7
    for left, right in table:
        theirs, ours = set(named(pattern, left)), set(named(pattern, right))
        assert theirs, left
        if right.startswith("the same"):
            assert theirs <= offered, left
        else:
            assert not theirs & offered, left
            assert right.startswith("none") or ours & offered, left
