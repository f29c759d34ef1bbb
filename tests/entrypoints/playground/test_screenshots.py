"""The pictures of docs/playground.md, of the default model; on request they are written there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from support.browser import NARROW, WIDE, Page
from support.playground import CHIP, answered, ask, card, ready, settle, unfold
from support.server import REPOSITORY, ServerProcess

pytestmark = pytest.mark.browser
# Where to write them; in a folder of the test's own otherwise, so that they are taken at all.
FOLDER = "FASTDEPLOY_LP_SCREENSHOTS"
QUESTION = "What is the capital of France?"
DOCUMENT = (REPOSITORY / "docs" / "playground.md").read_text()
PNG = b"\x89PNG\r\n\x1a\n"
CHAIN = ["RepetitionPenaltyLogitsProcessor", "LogitBiasLogitsProcessor", "MinPLogitsProcessor"]


@pytest.fixture(scope="module")
def shown() -> Iterator[ServerProcess]:
    """What `make serve` starts, with two more processors."""
    options = ["--config", str(REPOSITORY / "configs" / "smollm2-135m.yaml"), "--logits-processors", *CHAIN]
    with ServerProcess(*options, own_metrics_port=False) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the pictures go."""
    return REPOSITORY / os.environ[FOLDER] if FOLDER in os.environ else tmp_path


def keep(page: Page, path: Path) -> None:
    """Take a picture that the documentation shows."""
    assert f"images/{path.name}" in DOCUMENT
    page.driver.execute_script("document.activeElement.blur(); getSelection().removeAllRanges()")
    ActionChains(page.driver).move_to_element(page.find("#status")).perform()
    page.shot(path)
    assert path.read_bytes().startswith(PNG)


def ban_the_answer(page: Page) -> None:
    """The steps of docs/playground.md."""
    page.button(f"Ask: {QUESTION}").click()
    answered(page)
    paris = next(each for each in page.all(CHIP) if each.text.strip() == "Paris")
    paris.click()
    page.find('.inspector-head button[aria-label="Ban ␣Paris"]').click()
    page.button("Run again").click()
    answered(page, 2)
    page.find(".answer .chip.flipped").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_steps_of_the_docs_flip_a_token(blank: Page, shown: ServerProcess, folder: Path, scheme: str) -> None:
    page = ready(blank.open(f"{shown.url}/playground", prefers_color_scheme=scheme))
    ban_the_answer(page)
    assert "Paris" in page.find(".answer.former .tokens-of-answer").text
    assert "Paris" not in page.find(".answer:not(.former) .tokens-of-answer").text
    stages = page.all(".stage")
    assert "Paris" in stages[0].text
    assert "Paris" not in stages[-1].text
    page.driver.execute_script("arguments[0].scrollIntoView()", page.find(card(CHAIN[1])))
    keep(page, folder / f"playground-{scheme}.png")


def test_side_by_side(blank: Page, shown: ServerProcess, folder: Path) -> None:
    page = ready(blank.open(f"{shown.url}/playground"))
    page.type(page.field("repetition_penalty", unfold(page, CHAIN[0])), "1.4")
    page.find("#compare").click()
    settle(page, "max_tokens", "28")
    ask(page, "Tell me about the sea.")
    on, _ = answered(page, 2)
    assert "differs from token" in on.text
    page.find(".answer .chip.flipped").click()
    page.button("As a table").click()
    page.driver.execute_script("document.querySelector('.log').scrollTop = 0")
    keep(page, folder / "playground-side-by-side.png")


def test_a_phone(blank: Page, shown: ServerProcess, folder: Path) -> None:
    page = ready(blank.open(f"{shown.url}/playground", NARROW))
    ban_the_answer(page)
    page.driver.execute_script("scrollTo(0, 0)")
    keep(page, folder / "playground-phone.png")


def test_the_metrics(blank: Page, shown: ServerProcess, folder: Path) -> None:
    page = blank.open(f"{shown.url}/playground/metrics", WIDE)
    page.choose(page.find("#interval"), "second")
    page.until(lambda: page.all("#processors th"), "no numbers come")
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 96,
        "n": 8,
        "ignore_eos": True,
        "logits_processors": [
            {"name": CHAIN[0], "params": {"repetition_penalty": 1.2}},
            {"name": CHAIN[1], "params": {"logit_bias": {"7042": -100}}},
            {"name": CHAIN[2], "params": {"min_p": 0.05}},
        ],
    }
    for _ in range(3):
        httpx.post(f"{shown.url}/v1/chat/completions", json=body, timeout=600).raise_for_status()
    page.until(lambda: "µs" in page.find("#processors").text, "no cost is shown")
    keep(page, folder / "playground-metrics.png")
