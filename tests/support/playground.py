"""What people do on the playground's page."""

from __future__ import annotations

import json
import re
from typing import Any

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from support.browser import Page

CHAIN = [
    "LogitBiasLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "ForcedSequenceLogitsProcessor",
    "support.takes_everything:TakesEverything",
    "support.takes_everything:TakesAnything",
    "support.served_faults:RaisesOnBoom",
]
CONTEXT = 1024
KEY = "playground-key"
ROOT_PATH = "/proxied"
TRIED = "tried"
KEPT = "kept"
CHIP = ".answer .chip"


def ready(page: Page) -> Page:
    """Wait until the server's processors are there."""
    page.until(lambda: "is ready" in page.find("#status").text, "the playground is not ready")
    return page


def unlock(page: Page, server_url: str) -> Page:
    """Open the playground of a server that wants a key, and enter the key."""
    page.open(f"{server_url}{ROOT_PATH}/playground")
    page.until(lambda: errors(page))
    page.keys(KEY)
    page.button("Use").click()
    return ready(page)


def card(name: str) -> str:
    """Selects a processor's card."""
    return f'.processor[data-name="{name}"]'


def unfold(page: Page, name: str) -> str:
    """Open a processor's form; what selects its card."""
    disclosure = page.find(f"{card(name)} .disclosure")
    if disclosure.get_attribute("aria-expanded") == "false":
        disclosure.click()
    return card(name)


def set_argument(page: Page, name: str, argument: str, text: str) -> None:
    """Type an argument of a processor."""
    page.type(page.field(argument, unfold(page, name)), text)


def settle(page: Page, field: str, text: str) -> None:
    """Type a sampling field."""
    page.type(page.field(field, "#sampling"), text)


def ask(page: Page, text: str = "Hello") -> None:
    """Send a message."""
    page.type(page.find("#message"), text)
    page.keys(Keys.ENTER)


def answered(page: Page, count: int = 1) -> list[WebElement]:
    """The answers, when they are complete and no other ones are there."""

    def complete() -> list[WebElement] | None:
        whole = page.all('.answer[aria-busy="false"]')
        return whole if len(page.all(".answer")) == len(whole) == count else None

    found: list[WebElement] = page.until(complete, f"not {count} answers")
    return found


def chips(page: Page, selector: str = CHIP) -> list[str]:
    """The texts of an answer's tokens."""
    found: list[str] = page.run(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent);", selector
    )
    return found


def order(page: Page) -> list[str]:
    """The names of the processors from top to bottom."""
    return [str(each.get_attribute("data-name")) for each in page.all(".processor")]


def next_request(page: Page) -> dict[str, Any]:
    """The body that the page would send, read from the curl line."""
    page.button("Copy as curl").click()
    text = page.find("#snippet-code").get_property("value")
    page.button("Close", "#snippet").click()
    found = re.search(r"-d '(.*)'$", str(text), re.DOTALL)
    assert found is not None, text
    body: dict[str, Any] = json.loads(found.group(1).replace("'\\''", "'"))
    return body


def errors(page: Page) -> list[str]:
    """What the page says is wrong, without sign."""
    return page.texts(".error")
