"""Looking into a token: bars and table of each stage, against the trace that the API gives."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import NARROW, WIDE, Page
from support.playground import CHIP, answered, ask, next_request, ready, set_argument, settle
from support.server import ServerProcess

WORDS = "the quick"
BOX = "return arguments[0].getBoundingClientRect().toJSON()"


@pytest.fixture
def opened(page: Page) -> Page:
    """An answer whose first token is looked into."""
    set_argument(page, "ForcedSequenceLogitsProcessor", "text", WORDS)
    settle(page, "max_tokens", "8")
    settle(page, "Tokens shown", "4")
    ask(page)
    answered(page)
    page.find(CHIP).click()
    return page


def trace_of_the_last_request(page: Page, served: ServerProcess) -> list[dict[str, Any]]:
    """What the API says when it is asked the same."""
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=next_request(page)).json()
    found: list[dict[str, Any]] = answer["choices"][0]["logits_processors_trace"]
    return found


@pytest.mark.browser
def test_bars_show_what_the_trace_says(opened: Page, served: ServerProcess) -> None:
    trace = trace_of_the_last_request(opened, served)
    assert len(opened.all(CHIP)) == len(trace)
    titles = [each.text for each in opened.all(".stage h3")]
    assert titles == ["The model", "ForcedSequenceLogitsProcessor", "The draw"]
    for column, stage in zip(opened.all(".stage"), trace[0]["stages"], strict=True):
        shares = [each.text for each in column.find_elements("css selector", ".bar-share")]
        wanted = [entry["probability"] * 100 for entry in stage["top"]]
        given = [float(share.split()[0].lstrip("<>")) for share in shares[: len(wanted)]]
        assert given == pytest.approx(wanted, abs=0.06)
        widths = [each.rect["width"] for each in column.find_elements("css selector", ".bar-fill")]
        track = column.find_element("css selector", ".bar-track").rect["width"]
        assert [width / track * 100 for width in widths[: len(wanted)]] == pytest.approx(wanted, abs=1)
        (sampled,) = column.find_elements("css selector", ".bar.sampled")
        assert trace[0]["token"].replace(" ", "␣") in sampled.text


@pytest.mark.browser
def test_colours_and_marks_follow_the_chain(opened: Page, served: ServerProcess) -> None:
    trace = trace_of_the_last_request(opened, served)
    for chip, token in zip(opened.all(CHIP), trace, strict=True):
        moved = sum(stage["mass_moved"] or 0 for stage in token["stages"] if stage["kind"] == "processor")
        level = sum(moved >= bound for bound in (0.01, 0.1, 0.3, 0.6))
        classes = str(chip.get_attribute("class")).split()
        assert f"change-{level}" in classes
        confidence = token["stages"][0]["sampled"]["probability"]
        assert f"confidence-{sum(confidence >= bound for bound in (0.2, 0.5, 0.9))}" in classes
        flipped = any(stage["flipped"] for stage in token["stages"] if stage["kind"] == "processor")
        assert ("flipped" in classes) == flipped
    assert "change-4" in str(opened.find(CHIP).get_attribute("class"))


@pytest.mark.browser
def test_the_table_has_the_same_numbers(opened: Page, served: ServerProcess) -> None:
    trace = trace_of_the_last_request(opened, served)
    opened.button("As a table").click()
    assert opened.focused.get_attribute("aria-pressed") == "true"
    heads = [each.text for each in opened.all(".inspector thead th")]
    assert heads == ["Token", "The model", "ForcedSequenceLogitsProcessor", "The draw", "Next time"]
    (row,) = opened.all(".inspector tr.sampled")
    assert row.text.split()[1] == str(trace[0]["token_id"])
    assert f"({trace[0]['stages'][0]['sampled']['logit']:.2f})" in row.text
    opened.button("As a table").click()
    assert opened.all(".inspector table") == []


@pytest.mark.browser
def test_keys_and_buttons_lead_from_token_to_token(opened: Page) -> None:
    assert "number 1 of 8" in opened.find(".inspector").text
    assert not opened.button("Token before").is_enabled()
    opened.button("Token after").click()
    assert "number 2 of 8" in opened.find(".inspector").text
    opened.keys(Keys.ESCAPE)
    assert opened.all(".inspector") == []
    chips = opened.all(CHIP)
    assert opened.focused == chips[1]
    opened.keys(Keys.ARROW_RIGHT)
    assert opened.focused == chips[2]
    opened.keys(Keys.END)
    assert opened.focused == chips[-1]
    opened.keys(Keys.ARROW_RIGHT, Keys.HOME, Keys.ARROW_LEFT)
    assert opened.focused == chips[0]
    opened.keys(Keys.ENTER)
    assert "number 1 of 8" in opened.find(".inspector").text


@pytest.mark.browser
def test_a_token_is_banned_with_one_press_and_gone_in_the_next_answer(page: Page) -> None:
    settle(page, "max_tokens", "6")
    ask(page)
    answered(page)
    first = page.all(CHIP)[0]
    token = str(first.get_attribute("aria-label"))
    first.click()
    page.find('.inspector-head button[aria-label^="Ban"]').click()
    assert page.focused.get_attribute("id") == "again"
    (entry,) = next_request(page)["logits_processors"]
    assert (entry["name"], list(entry["params"]["logit_bias"].values())) == ("LogitBiasLogitsProcessor", [-100])
    page.button("Run again").click()
    answered(page, 2)
    label = str(page.find(".answer:not(.former) .chip").get_attribute("aria-label"))
    assert "flipped by the chain" in label
    assert label.split(", moved")[0] != token.split(", moved")[0]


@pytest.mark.parametrize("traced", [True, False])
def test_markup_in_an_answer_is_text(page: Page, traced: bool) -> None:
    markup = '<img src=x onerror="window.hit=1"><b>bold</b>'
    set_argument(page, "ForcedSequenceLogitsProcessor", "text", markup)
    settle(page, "max_tokens", "60")
    if not traced:
        page.find("#trace").click()
    ask(page, markup)
    (answer,) = answered(page)
    text = str(answer.get_property("textContent"))
    assert markup in text
    assert page.all(".answer img, .answer b, .question b") == []
    if traced:
        page.find(CHIP).click()
        page.button("As a table").click()
        assert page.all(".inspector img, .inspector b") == []
    assert page.driver.execute_script("return window.hit") is None


@pytest.mark.browser
def test_tokens_look_like_buttons_before_the_first_click(page: Page) -> None:
    settle(page, "max_tokens", "12")
    ask(page)
    answered(page)
    style = "const ink = arguments[0].querySelector('.ink'); return getComputedStyle(ink).backgroundColor"
    tones = [page.driver.execute_script(style, chip) for chip in page.all(CHIP)]
    assert "rgba(0, 0, 0, 0)" not in tones
    assert "confidence" in str(page.find(CHIP).get_attribute("aria-label"))
    assert page.driver.execute_script("return getComputedStyle(arguments[0]).cursor", page.find(CHIP)) == "pointer"


@pytest.mark.browser
def test_a_darker_token_was_less_certain(page: Page, served: ServerProcess) -> None:
    script = """
        const [root, done] = arguments;
        import(root + "/trace.js").then(({ confidenceLevelOf }) =>
            done([0, 0.19, 0.2, 0.5, 0.89, 0.9, 1].map(confidenceLevelOf)), (error) => done(String(error)));
    """
    levels = page.driver.execute_async_script(script, f"{served.url}/playground")
    assert levels == [0, 0, 1, 2, 2, 3, 3]

    def brightness(level: int) -> int:
        colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
        found = page.driver.execute_script(colour, f".sample.confidence-{level}")
        return sum(map(int, re.findall(r"\d+", found)[:3]))

    assert brightness(0) < brightness(1) < brightness(2) < brightness(3)


@pytest.mark.browser
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_bars_are_in_sight_with_their_token_however_long_the_answer_is(
    blank: Page, served: ServerProcess, size: tuple[int, int]
) -> None:
    page = ready(blank.open(f"{served.url}/playground", size))
    if size == NARROW:
        page.find("#sampling-panel summary").click()
    set_argument(page, "TakesEverything", "ratio", "0.5")
    settle(page, "max_tokens", "700")
    ask(page)
    answered(page)
    for place in (2, 350, 690):
        chip = page.all(CHIP)[place]
        page.driver.execute_script("arguments[0].scrollIntoView({ block: 'center' }); arguments[0].click()", chip)
        inspector = page.find(".inspector")
        assert f"number {place + 1} of" in inspector.text
        boxes = [page.driver.execute_script(BOX, each) for each in (inspector, chip)]
        for box in boxes:
            assert box["top"] >= 0
            assert box["bottom"] <= size[1]
        bars, token = boxes
        # Neither covers the other: beside it if the window is wide, below it otherwise.
        assert bars["left"] >= token["right"] if size == WIDE else bars["top"] >= token["bottom"]
