"""What goes wrong is told where it belongs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.browser import Page
from support.playground import (
    CHAIN,
    CHIP,
    KEY,
    ROOT_PATH,
    answered,
    ask,
    card,
    errors,
    next_request,
    ready,
    set_argument,
    settle,
    unfold,
    unlock,
)
from support.server import ServerProcess, health

pytestmark = pytest.mark.browser
EVERYTHING = "TakesEverything"


def test_a_limit_is_told_at_its_field_before_anything_is_sent(page: Page) -> None:
    set_argument(page, EVERYTHING, "ratio", "1.5")
    ask(page, "kept")
    assert errors(page) == ["must be at most 1"]
    ratio = page.field("ratio", card(EVERYTHING))
    assert ratio.get_attribute("aria-invalid") == "true"
    assert page.focused == ratio
    assert page.find("#message").get_property("value") == "kept"
    assert page.all(".answer") == []
    page.type(ratio, "0.5")
    assert errors(page) == []
    page.find("#send").click()
    answered(page)


def test_what_is_missing_is_told_in_a_folded_card(page: Page) -> None:
    page.find(f"{card(EVERYTHING)} [role=switch]").click()
    page.find(f"{card(EVERYTHING)} .disclosure").click()
    ask(page)
    assert errors(page) == ["is needed"]
    assert page.focused == page.field("ratio", card(EVERYTHING))


def test_a_refusal_of_the_server_stands_at_the_argument_that_it_is_about(page: Page) -> None:
    within = unfold(page, "LogitBiasLogitsProcessor")
    for bias in ("5", "1e12"):
        page.type(page.find(f"{within} .token-picker input"), "fox" if bias == "5" else "dog")
        page.button("Find", within).click()
        page.find(f"{within} .token-choice").click()
        page.keys(bias)
    ask(page, "kept")
    page.until(lambda: errors(page), "no error is shown")
    (message,) = errors(page)
    assert "a bias of 1000000000000.0 is not allowed" in message
    rows = page.all(f"{within} .entries > li")
    assert [bool(row.find_elements("css selector", "[aria-invalid]")) for row in rows] == [False, True]
    assert page.find("#message").get_property("value") == "kept"
    assert page.all(".answer") == []


def test_a_refused_sampling_field_is_named_there(page: Page) -> None:
    settle(page, "top_k", "-7")
    ask(page)
    page.until(lambda: errors(page), "no error is shown")
    assert page.focused == page.field("top_k", "#sampling")
    assert len(page.all("#sampling .error:not([hidden])")) == 1


def test_more_than_may_be_traced_is_told_at_the_trace(page: Page) -> None:
    settle(page, "Tokens shown", "21")
    ask(page)
    assert errors(page) == ["must be at most 20"]


def test_a_refusal_ends_the_half_that_was_not_refused(page: Page) -> None:
    page.find("#compare").click()
    settle(page, "max_tokens", "900")
    page.find(f"{card('TakesAnything')} [role=switch]").click()
    within = unfold(page, "LogitBiasLogitsProcessor")
    page.type(page.find(f"{within} .token-picker input"), "fox")
    page.button("Find", within).click()
    page.find(f"{within} .token-choice").click()
    page.keys("1e12")
    ask(page)
    page.until(lambda: errors(page), "no error is shown")
    assert page.find("#send").is_displayed()
    assert page.all(".answer") == []


def test_an_empty_message_is_not_sent(page: Page) -> None:
    page.find("#send").click()
    assert errors(page) == ["write a message first"]


def test_a_prompt_that_is_too_long_is_told_at_the_message(page: Page) -> None:
    page.driver.execute_script("arguments[0].value = 'x'.repeat(5000)", page.find("#message"))
    page.find("#send").click()
    page.until(lambda: errors(page), "no error is shown")
    assert page.find("#message").get_attribute("aria-invalid") == "true"
    assert len(str(page.find("#message").get_property("value"))) == 5000


def test_a_processor_that_fails_in_the_middle_leaves_what_came_and_says_why(page: Page) -> None:
    set_argument(page, "RaisesOnBoom", "boom", "40")
    ask(page)
    (answer,) = answered(page)
    # What the server had not sent yet is lost with the failure.
    assert 0 < len(page.all(CHIP)) <= 40
    assert "RaisesOnBoom" in answer.text
    assert "boom was asked for" in answer.text
    # The page goes on.
    page.find(f"{card('RaisesOnBoom')} [role=switch]").click()
    page.button("Run again").click()
    answered(page, 2)
    assert "boom" not in page.find(".answer:not(.former)").text


def test_a_key_is_asked_for_sent_and_kept_in_the_tab(blank: Page, locked: ServerProcess) -> None:
    page = blank.open(f"{locked.url}{ROOT_PATH}/playground")
    page.until(lambda: errors(page), "no key is asked for")
    assert errors(page) == ["this server wants an API key"]
    assert page.focused.get_attribute("id") == "key"
    assert page.all(".processor") == []
    page.keys("wrong")
    page.button("Use").click()
    page.until(lambda: errors(page) == ["the server does not know this key"])
    page.type(page.find("#key"), KEY)
    page.button("Use").click()
    ready(page)
    assert errors(page) == []
    ask(page)
    answered(page)
    page.button("Copy as curl").click()
    code = str(page.find("#snippet-code").get_property("value"))
    assert KEY not in code
    assert '-H "Authorization: Bearer $FASTDEPLOY_LP_API_KEY"' in code
    assert f"{locked.url}{ROOT_PATH}/v1/chat/completions" in code
    page.button("Close", "#snippet").click()
    page.driver.refresh()
    ready(page)
    assert page.driver.execute_script("return JSON.stringify(localStorage)").count(KEY) == 0


def test_a_key_that_is_taken_back_is_told_at_its_field(blank: Page, locked: ServerProcess) -> None:
    page = unlock(blank, locked.url)
    page.type(page.find("#key"), "another")
    page.find("#send").click()
    page.until(lambda: "the server does not know this key" in errors(page))


def test_a_server_that_is_gone_is_told_and_the_message_kept(blank: Page, checkpoint: Path) -> None:
    with ServerProcess("--playground", model=str(checkpoint)) as server:
        page = ready(blank.open(f"{server.url}/playground"))
        assert "declares no logits processors" in page.find("#chain").text
    ask(page, "kept")
    page.until(lambda: errors(page), "no error is shown")
    assert errors(page) == ["The server cannot be reached. Is it still running?"]
    assert page.find("#message").get_property("value") == "kept"


def test_ready_turns_when_the_server_is_gone_and_turns_back_when_it_returns(blank: Page, checkpoint: Path) -> None:
    def status() -> tuple[str, str]:
        element = blank.find("#status")
        return element.text, str(element.get_attribute("data-kind"))

    options = ("--playground", "--logits-processors", CHAIN[0], CHAIN[1])
    with ServerProcess(*options, model=str(checkpoint)) as server:
        page = ready(blank.open(f"{server.url}/playground"))
        assert status()[1] == "good"
        set_argument(page, CHAIN[1], "repetition_penalty", "1.3")
        server.stop()
        # The page sees it by itself: nothing is sent.
        page.until(lambda: status() == ("The server cannot be reached. Is it still running?", "bad"))
        server.launch()
        ready(page)
        assert status()[1] == "good"
    # The settings are still there.
    assert [entry["name"] for entry in next_request(page)["logits_processors"]] == [CHAIN[1]]


def test_a_server_that_does_not_answer_is_not_ready(blank: Page, checkpoint: Path) -> None:
    with ServerProcess("--playground", model=str(checkpoint)) as server:
        page = ready(blank.open(f"{server.url}/playground"))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            page.until(lambda: page.find("#status").get_attribute("data-kind") == "bad")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        ready(page)


def test_the_page_waits_for_a_server_that_starts(blank: Page, checkpoint: Path) -> None:
    server = ServerProcess("--playground", model=str(checkpoint), own_metrics_port=False)
    try:
        server.launch()
        blank.until(lambda: health(server.url) is not None, "the server does not listen")
        ready(blank.open(f"{server.url}/playground"))
    finally:
        server.close()
