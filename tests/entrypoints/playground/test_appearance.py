"""Light and dark, phones, keyboards, and what axe says of accessibility."""

from __future__ import annotations

import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from support.browser import NARROW, WIDE, Page
from support.playground import CHAIN, CHIP, answered, ask, card, chips, ready, set_argument, settle, unfold
from support.server import ServerProcess

pytestmark = pytest.mark.browser
SIZES = {"wide": WIDE, "narrow": NARROW}
# Chips are in a line of text, and a checkbox has a label that takes clicks as well.
SMALL = """
return shown(document, "button:not(.chip), input:not([type=checkbox]), select, summary").filter((each) => {
    const {width, height} = each.getBoundingClientRect();
    return Math.min(width, height) < 24;
}).map((each) => each.outerHTML);
"""


def brightness(page: Page) -> float:
    """Of the page's ground, 0 to 255."""
    script = "return getComputedStyle(document.documentElement).backgroundColor"
    red, green, blue = map(int, re.findall(r"\d+", page.driver.execute_script(script))[:3])
    return (red + green + blue) / 3


def overflow(page: Page) -> int:
    """How many pixels the page is wider than what shows it."""
    return int(page.driver.execute_script("return document.documentElement.scrollWidth - innerWidth"))


def fill(page: Page) -> None:
    """Everything that the page can show: open forms, an error, answers of two runs, a token, bars."""
    for spec in CHAIN:
        unfold(page, spec.rpartition(":")[2])
    for panel in page.all("details.panel:not([open]) > summary"):
        panel.click()
    set_argument(page, "ForcedSequenceLogitsProcessor", "text", "the quick brown fox")
    page.find("#compare").click()
    settle(page, "max_tokens", "12")
    ask(page)
    answered(page, 2)
    page.button("Run again").click()
    answered(page, 4)
    page.find(".earlier > summary").click()
    page.find(CHIP).click()
    ActionChains(page.driver).move_to_element(page.find(".inspector .term")).perform()
    set_argument(page, "TakesEverything", "ratio", "7")
    page.find("#send").click()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(blank: Page, served: ServerProcess, scheme: str, size: str) -> None:
    page = ready(blank.open(f"{served.url}/playground", SIZES[size], prefers_color_scheme=scheme))
    assert page.faults() == []
    fill(page)
    assert page.faults() == []
    assert overflow(page) == 0
    page.button("As a table").click()
    assert page.faults() == []
    assert overflow(page) == 0


def test_axe_is_not_blind(page: Page) -> None:
    page.driver.execute_script(
        "const faint = document.querySelector('#reorder-help');"
        "faint.style.color = '#ddd'; faint.style.background = '#fff';"
        "document.querySelector('label[for=system]').remove(); document.getElementById('system').hidden = false;"
        "for (const panel of document.querySelectorAll('details.panel')) panel.open = true;"
    )
    assert {fault["id"] for fault in page.faults()} == {"color-contrast", "label"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_the_metrics(blank: Page, served: ServerProcess, scheme: str, size: str) -> None:
    page = blank.open(f"{served.url}/playground/metrics", SIZES[size], prefers_color_scheme=scheme)
    page.until(lambda: page.all("#processors th"), "no numbers come")
    page.find("details.panel summary").click()
    assert page.faults() == []
    assert overflow(page) == 0


def test_the_theme_is_the_systems_until_one_is_chosen(blank: Page, served: ServerProcess) -> None:
    page = ready(blank.open(f"{served.url}/playground", prefers_color_scheme="dark"))
    assert brightness(page) < 60
    page.find("#theme").click()
    assert brightness(page) > 200
    page.driver.refresh()
    assert brightness(page) > 200
    page.find("nav a:not([aria-current])").click()
    page.until(lambda: page.driver.current_url.endswith("/playground/metrics"))
    assert brightness(page) > 200
    page.find("#theme").click()
    assert brightness(page) < 60


def test_those_who_want_no_motion_get_none(blank: Page, served: ServerProcess) -> None:
    script = "return getComputedStyle(document.querySelector('.switch')).transitionDuration"
    page = ready(blank.open(f"{served.url}/playground", prefers_reduced_motion="no-preference"))
    assert page.driver.execute_script(script) != "0s"
    page = ready(blank.open(f"{served.url}/playground", prefers_reduced_motion="reduce"))
    assert page.driver.execute_script(script) == "0s"


def test_a_phone_shows_everything_in_one_column(blank: Page, served: ServerProcess) -> None:
    page = ready(blank.open(f"{served.url}/playground", NARROW))
    assert overflow(page) == 0
    set_argument(page, "ForcedSequenceLogitsProcessor", "text", "the quick brown fox")
    page.find("#sampling-panel summary").click()
    page.find("#compare").click()
    ask(page)
    on, off = answered(page, 2)
    assert on.rect["x"] == off.rect["x"]
    assert on.rect["y"] < off.rect["y"]
    page.find(CHIP).click()
    columns = {each.rect["x"] for each in page.all(".stage")}
    assert len(columns) <= 2
    assert overflow(page) == 0
    assert page.run(SMALL) == []


def test_a_keyboard_is_enough(page: Page) -> None:
    name = "ForcedSequenceLogitsProcessor"

    def has(attribute: str, value: str) -> WebElement:
        return page.tab_to(lambda each: each.get_attribute(attribute) == value)

    assert page.focused.get_attribute("id") == "message"
    has("id", "chain-filter")
    page.keys("forced")
    has("aria-label", f"Use {name}")
    page.keys(Keys.SPACE)
    assert page.find(f"{card(name)} [role=switch]").is_selected()
    assert page.focused.get_attribute("aria-label") == f"Use {name}"
    page.tab_to(lambda each: each.tag_name == "textarea")
    page.keys("the quick")
    page.driver.execute_script("arguments[0].focus()", page.find("#theme"))
    has("id", "message")
    page.keys("Hello", Keys.ENTER)
    answered(page)
    assert page.focused.get_attribute("id") == "message"
    page.tab_to(lambda each: "chip" in str(each.get_attribute("class")), back=True)
    assert "".join(chips(page)).startswith("the quick")
    page.keys(Keys.ARROW_RIGHT, Keys.ENTER)
    assert "number 2 of" in page.find(".inspector").text
    page.tab_to(lambda each: each.text == "As a table")
    page.keys(Keys.SPACE)
    assert page.find(".inspector table")
    page.keys(Keys.ESCAPE)
    assert "chip" in str(page.focused.get_attribute("class"))
    page.tab_to(lambda each: each.text == "Copy as curl")
    page.keys(Keys.ENTER)
    assert page.find("#snippet-code")
    page.keys(Keys.ESCAPE)
    assert page.focused.text == "Copy as curl"


def test_the_focus_can_be_seen(page: Page) -> None:
    for _ in range(12):
        page.keys(Keys.TAB)
        outline = page.driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.focused.get_attribute("outerHTML")
