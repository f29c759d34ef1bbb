"""Explanations of terms: on hover, by keyboard, and one for each term that is marked."""

from __future__ import annotations

import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.browser import NARROW, Page
from support.playground import CHIP, answered, ask, ready, settle
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.playground.routes import static_files

EXPLANATION = "#explanation"
MARKED = r'(?:data-term="|\b(?:term|termInControl)\(")([^"]+)"|explained: "([^"]+)"'


def test_every_marked_term_is_explained_and_every_explanation_is_of_use() -> None:
    texts = {name: file.content.decode() for name, file in static_files().items()}
    glossary = texts.pop("glossary.js")
    explained = {quoted or plain for quoted, plain in re.findall(r'^  (?:"([^"]+)"|(\w+)):', glossary, re.MULTILINE)}
    marked = {one or other for text in texts.values() for one, other in re.findall(MARKED, text)}
    # The names of stages, which a trace has.
    stages = {"raw", "guided_decoding", "penalties", "filtered", "final"}
    assert marked | stages == explained
    assert len(marked) > 15


@pytest.fixture
def opened(page: Page) -> Page:
    """An answer whose first token is looked into."""
    settle(page, "max_tokens", "4")
    ask(page)
    answered(page)
    page.find(CHIP).click()
    return page


def explanation(page: Page) -> str:
    """What the page explains now."""
    return "".join(page.texts(EXPLANATION))


@pytest.mark.browser
def test_the_pointer_shows_an_explanation_until_it_leaves(opened: Page) -> None:
    assert explanation(opened) == ""
    term = opened.find('.inspector .term[data-term="entropy"]')
    ActionChains(opened.driver).move_to_element(term).perform()
    assert explanation(opened).startswith("How undecided the model is")
    assert term.get_attribute("aria-describedby") == "explanation"
    tip = opened.find(EXPLANATION)
    ActionChains(opened.driver).move_to_element(tip).perform()
    assert explanation(opened) != ""
    ActionChains(opened.driver).move_to_element(opened.find("#status")).perform()
    opened.until(lambda: explanation(opened) == "", "the explanation stays")


@pytest.mark.browser
def test_the_focus_shows_an_explanation_and_escape_hides_it_alone(opened: Page) -> None:
    opened.tab_to(lambda each: each.get_attribute("data-term") == "confidence")
    assert explanation(opened).startswith("The probability that the model itself gave")
    opened.keys(Keys.ESCAPE)
    assert explanation(opened) == ""
    assert opened.find(".inspector")
    opened.keys(Keys.ESCAPE)
    assert opened.all(".inspector") == []


@pytest.mark.browser
def test_a_term_is_one_tab_stop_in_the_inspector_however_often_it_occurs(opened: Page) -> None:
    stops = [str(each.get_attribute("data-term")) for each in opened.all(".inspector .term[tabindex]")]
    assert len(opened.all('.inspector .term[data-term="entropy"]')) > 1
    assert len(set(stops)) == len(stops)


@pytest.mark.browser
def test_an_explanation_stays_within_a_phone(blank: Page, served: ServerProcess) -> None:
    page = ready(blank.open(f"{served.url}/playground", NARROW))
    ask(page)
    answered(page)
    ActionChains(page.driver).move_to_element(page.find('.legend .term[data-term="in shadow"]')).perform()
    tip = page.find(EXPLANATION).rect
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= NARROW[0]
    page.driver.get(f"{served.url}/playground/metrics")
    page.until(lambda: page.all("#cards .term"), "no cards")
    ActionChains(page.driver).move_to_element(page.find('.term[data-term="KV cache"]')).perform()
    assert explanation(page).startswith("Memory that holds")
