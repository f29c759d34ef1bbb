"""Every command and program in the README and in the first steps is run as it is printed, but for ports and the path of
the environment.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.printed_program import printed_by
from support.server import REPOSITORY, ServerProcess

README, FIRST_STEPS = ((REPOSITORY / page).read_text() for page in ("README.md", "docs/first-steps.md"))
PRINTED_URL = "http://127.0.0.1:8180"


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def block_with(page: str, language: str, text: str) -> str:
    (found,) = [block for block in code_blocks(page, language) if text in block]
    return found


@pytest.fixture
def plain_answer(golden_cases: list[dict[str, str]]) -> str:
    """What the model says to the README's question without any processor."""
    return next(case["output_text"] for case in golden_cases if case["prompt"] == "What is the capital of France?")


def test_no_block_of_code_is_left_out_of_these_tests() -> None:
    assert len(code_blocks(README, "bash")) == 2
    assert README.count("```") == 2 * 2
    assert [len(code_blocks(FIRST_STEPS, language)) for language in ("bash", "python")] == [1, 3]
    assert FIRST_STEPS.count("```") == 2 * 4


def test_the_curl_line_bans_the_token(server: ServerProcess, plain_answer: str) -> None:
    command = block_with(README, "bash", "curl").replace(PRINTED_URL, server.url)
    answer = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, check=True).stdout
    assert '"choices"' in answer
    assert "Paris" in plain_answer
    assert "Paris" not in answer


def test_the_openai_program_bans_the_token(server: ServerProcess, tmp_path: Path) -> None:
    answer = printed_by(block_with(FIRST_STEPS, "python", "openai.Client").replace(PRINTED_URL, server.url), tmp_path)
    assert answer.strip()
    assert "Paris" not in answer


def test_the_offline_program_bans_the_token(tmp_path: Path) -> None:
    answer = printed_by(block_with(FIRST_STEPS, "python", "LLM("), tmp_path)
    assert answer.strip()
    assert "Paris" not in answer


def test_the_own_processor_is_served_by_the_printed_command(tmp_path: Path, light_checkpoint: Path) -> None:
    (tmp_path / "shout.py").write_text(block_with(FIRST_STEPS, "python", "class OnlyTokens"))
    printed = block_with(FIRST_STEPS, "bash", "shout:OnlyTokens")
    options = re.search(r"api_server \\\n(.*)", printed, re.DOTALL)
    assert options is not None
    words = options.group(1).replace("\\\n", " ").split()
    declared = words[words.index("--logits-processors") :]
    assert words[:2] == ["--model", "smollm2-135m"]
    # The processor alone decides on the answer, with any weights.
    with ServerProcess(*declared, model=str(light_checkpoint), env={"PYTHONPATH": str(tmp_path)}) as server:
        question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
        body = json.dumps(question | {"logits_processors_args": {"only_tokens": [7042]}})
        url = f"{server.url}/v1/chat/completions"
        header = "Content-Type: application/json"
        answer = subprocess.run(
            ["curl", "-sS", url, "-H", header, "-d", body], capture_output=True, text=True, check=True
        ).stdout
        wrong = json.dumps(question | {"logits_processors_args": {"only_tokens": "Paris"}})
        refusal = subprocess.run(
            ["curl", "-sS", "-w", "%{http_code}", url, "-H", header, "-d", wrong],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert " Paris Paris Paris Paris Paris" in answer
    assert json.loads(refusal[:-3])["error"]["param"] == "logits_processors_args.only_tokens"
    assert refusal.endswith("400")


def test_the_make_targets_and_files_that_the_readme_names_exist() -> None:
    targets = re.findall(r"^(?:make )(\w+)", "\n".join(code_blocks(README, "bash")), re.MULTILINE)
    makefile = (REPOSITORY / "Makefile").read_text()
    assert targets == ["serve", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) > 40
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
