"""Every recipe of docs/cookbook.md is run as it is printed, but for the address, and has the effect that is told."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.command import run_here
from support.printed_program import printed_by
from support.server import REPOSITORY, ServerProcess, server_environment

from fastdeploy_lp.entrypoints.cli import main

DOCUMENT = (REPOSITORY / "docs" / "cookbook.md").read_text()
PRINTED_URL = "http://127.0.0.1:8180"
INTRODUCTION, *SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
# Answers to the same question are equal as far as they go.
SHORT = 40
RECIPES = {section.partition("\n")[0]: section for section in SECTIONS}


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", ""))


def modules() -> dict[str, str]:
    """Contents of the page's files by name."""
    return dict(re.findall(r"^```python\n# file: (\S+)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def recipe_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """What the page's first command starts, and behind its processors those of the page's files."""
    folder = tmp_path_factory.mktemp("cookbook")
    for name, contents in modules().items():
        (folder / name).write_text(contents)
    (command,) = blocks("bash", INTRODUCTION)
    words = words_of(command)
    assert words[:6] == [".venv/bin/fastdeploy-lp", "serve", "--model", "smollm2-135m", "--quantization", "w8a16"]
    declared = words[words.index("--logits-processors") :]
    (own,) = blocks("bash", RECIPES["Steer with a processor of your own"])
    path = f"{folder}:{server_environment()['PYTHONPATH']}"
    (added,) = re.findall(r"add `(\S+)` to the server's processors", DOCUMENT)
    with ServerProcess(*words[4:6], *declared, added, words_of(own)[-1], env={"PYTHONPATH": path}) as running:
        yield running


@pytest.fixture(scope="module")
def shared(recipe_server: ServerProcess) -> Iterator[dict[str, Any]]:
    """The names that the recipes share."""
    (block,) = [block for block in blocks("python", INTRODUCTION) if block.startswith("# shared")]
    names: dict[str, Any] = {}
    exec(block.replace(PRINTED_URL, recipe_server.url), names)
    with names["client"]:
        yield names


@pytest.fixture
def run(shared: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Runs a recipe in a folder of its own and gives what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_recipe(title: str) -> str:
        (program,) = [block for block in blocks("python", RECIPES[title]) if not block.startswith("# file: ")]
        return printed_by(program, names=shared).rstrip("\n")

    return run_recipe


@pytest.fixture
def ask(shared: dict[str, Any]) -> Callable[..., str]:
    """The page's own way to ask, to see what the model says without a recipe, as far as a test reads it."""
    return partial(shared["ask"], max_tokens=SHORT)


def test_every_recipe_is_run_by_a_test_of_its_own() -> None:
    run_here = re.findall(r"run\(\"([^\"]+)\"\)", Path(__file__).read_text())
    assert sorted(run_here) == sorted(RECIPES)
    assert len(RECIPES) >= 10


def test_names_of_competitors_are_banned(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    names = ("samsung", "apple", "google")
    assert any(name in ask("Name three makers of smartphones.").lower() for name in names)
    banned = run("Ban the names of competitors").lower()
    assert banned
    assert not any(name in banned for name in names)


def test_names_of_competitors_are_replaced(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    names = ("samsung", "apple", "google", "huawei")
    assert any(name in ask("Name three makers of smartphones.").lower() for name in names)
    replaced = run("Replace the names of competitors").lower()
    assert len(replaced) > 40
    assert not any(name in replaced for name in names)


def test_the_answer_is_json_of_the_schema(run: Callable[[str], str]) -> None:
    found = re.fullmatch(r"(.{0,20}) (\d+)", run("Force JSON"))
    assert found is not None
    assert 18 <= int(found.group(2)) <= 99


def test_thinking_ends_when_its_budget_is_used_up(
    run: Callable[[str], str], ask: Callable[..., str], recipe_server: ServerProcess
) -> None:
    question = "What is 17 + 25?"
    assert "</think>" not in ask(question, logits_processors_args={"forced_sequence": "<think>"})
    found = re.fullmatch(
        r"<think>(.*That is enough\.\n)</think>(.+)", run("End thinking after N tokens"), flags=re.DOTALL
    )
    assert found is not None
    body = {"prompt": found.group(1), "add_special_tokens": False}
    assert httpx.post(f"{recipe_server.url}/tokenize", json=body).json()["count"] <= 24


def test_json_comes_after_thinking(run: Callable[[str], str]) -> None:
    assert 0 <= int(run("JSON after thinking")) <= 99


@pytest.fixture(scope="module")
def rain(shared: dict[str, Any]) -> str:
    """How the model explains rain without a recipe, in as many tokens as a recipe has."""
    answer: str = shared["ask"]("Explain how rain forms.")
    return answer


def test_the_answer_ends_with_its_sentence(run: Callable[[str], str], rain: str, recipe_server: ServerProcess) -> None:
    cut = run("End with a whole sentence after N tokens")
    assert rain.startswith(cut)
    assert cut.endswith(".")
    body = {"prompt": cut, "add_special_tokens": False}
    assert 30 <= httpx.post(f"{recipe_server.url}/tokenize", json=body).json()["count"] < 100


def test_moderation_stops_the_stream(run: Callable[[str], str]) -> None:
    found = re.fullmatch(r"(.*cat)s? \[moderation: cat\]", run("Moderation that stops a stream"), flags=re.DOTALL)
    assert found is not None
    assert "dog" not in found.group(1)


def test_each_tenant_has_its_rules(
    run: Callable[[str], str], shared: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = RECIPES["Give each tenant its own rules"]
    (rules,), (command,) = blocks("yaml", section), blocks("bash", section)
    (tmp_path / "policy.yaml").write_text(rules)
    words = words_of(command)
    options = words[words.index("--logits-processors") : words.index("--policy")]
    with ServerProcess(*options, "--policy", str(tmp_path / "policy.yaml")) as tenants:
        monkeypatch.setitem(shared, "SERVER", tenants.url)
        first, second = run("Give each tenant its own rules").splitlines()
    assert first.startswith("tenant-a: ")
    assert "Paris" not in first
    assert second == "tenant-b: 'The capital of France'"


def test_answers_are_shorter_and_end_with_a_sentence(run: Callable[[str], str], rain: str) -> None:
    short = run("Keep answers short")
    assert len(short) < len(rain) * 2 / 3
    assert short.endswith(".")


def test_the_watermark_is_found_with_its_key_and_with_no_other(run: Callable[[str], str]) -> None:
    run("Watermark a text, and find the watermark")
    (command,) = blocks("bash", RECIPES["Watermark a text, and find the watermark"])
    words = words_of(command)[1:]
    main(words)
    words[words.index("2023")] = "2024"
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1


def test_the_phrase_stands_at_the_end(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    phrase = "\n\nThis answer was written by a machine."
    assert run("Put a phrase at the end") == ask("What is the capital of France?") + phrase
    sourced = ask("What is the capital of France?", logits_processors_args={"last_phrase": " Source:"})
    assert re.search(" Source:.", sourced)


def test_the_answer_is_one_of_the_choices(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    choices = ["positive", "negative"]
    assert ask("Is this review positive or negative? I love this place, best food!") not in choices
    assert run("Choose among options").splitlines() == choices


def test_a_text_is_classified_without_a_token(run: Callable[[str], str]) -> None:
    lines = run("Classify in one step").splitlines()
    assert len(lines) == 2
    for line in lines:
        found = re.fullmatch(r"(positive|negative) (\{.*\}) 0", line)
        assert found is not None
        probabilities = ast.literal_eval(found.group(2))
        assert found.group(1) == max(probabilities, key=probabilities.__getitem__)
        assert 0 < sum(probabilities.values()) < 1


def test_the_answer_cites_the_prompt(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    passage = "The drug zolprimax lowers blood pressure. Patients take 40 mg at dusk."
    assert "dusk" not in ask(f"{passage} How is zolprimax taken?")
    assert "dusk" in run("Answer in the words of the prompt")


def test_words_are_made_more_and_less_likely(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    plain = ask("Which pet should I get?").lower()
    assert "cat" in plain
    assert "dog" not in plain
    biased = run("Make words more or less likely").lower()
    assert "dog" in biased
    assert not re.search(r"\bcats?\b", biased)


def test_no_run_of_words_comes_twice(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    def repeats(text: str) -> bool:
        words = text.split()
        runs = [tuple(words[start : start + 7]) for start in range(len(words) - 6)]
        return len(set(runs)) < len(runs)

    question = "The drug zolprimax lowers blood pressure. Patients take 40 mg at dusk. How is zolprimax taken?"
    assert question in RECIPES["Stop repetitions"]
    assert repeats(ask(question, max_tokens=120))
    assert not repeats(run("Stop repetitions"))


def test_a_seed_gives_the_same_text_alone_and_in_a_crowd(run: Callable[[str], str]) -> None:
    printed = run("Sample reproducibly")
    assert f"It prints `{printed}`" in RECIPES["Sample reproducibly"]


def test_the_trace_tells_where_the_bias_changed_the_token(run: Callable[[str], str]) -> None:
    (line,) = run("See why a token came").splitlines()
    assert re.fullmatch(r"' \w+' LogitBiasLogitsProcessor moved \d+%", line)


def test_the_pages_own_processor_leaves_the_letter_out(run: Callable[[str], str], ask: Callable[..., str]) -> None:
    assert "e" in ask("Tell me about the sea.", max_tokens=20).lower()
    without = run("Steer with a processor of your own").lower()
    assert len(without) > 20
    assert "e" not in without
    assert "e" in ask("Tell me about the sea.", max_tokens=20).lower()


def test_the_pages_own_processor_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, contents in modules().items():
        (tmp_path / name).write_text(contents)
    (printed,) = re.findall(r"`fastdeploy-lp (check \S+)`", DOCUMENT)
    monkeypatch.syspath_prepend(tmp_path)
    # How fast it is depends on the machine.
    done = run_here(capfd, *printed.split(), "--skip", "speed")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
