"""A real Chromium for tests of the playground, driven by Selenium."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from support.server import TESTS

# Set where a missing browser is a failure and not a reason to leave tests out.
NEEDED = "FASTDEPLOY_LP_NEEDS_BROWSER"
AXE = TESTS / "entrypoints" / "playground" / "node" / "node_modules" / "axe-core" / "axe.min.js"
WAIT_SECONDS = 30.0
MOST_TABS = 60
# The driver presses no keys for characters beyond this one.
LAST_TYPED = "\uffff"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--force-color-profile=srgb", "--window-size=1400,1000"),
)
WIDE, NARROW = (1280, 860), (390, 844)
SERIOUS = ("serious", "critical")
# In the page, for all elements in one call of the driver, each of which takes milliseconds.
SHOWN = """
const shown = (root, selector) => [...root.querySelectorAll(selector)].filter((each) =>
    each.checkVisibility({opacityProperty: true, visibilityProperty: true}) && each.getClientRects().length > 0);
"""
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(
    (found) => done(found.violations.map(({id, impact, help, nodes}) => (
        {id, impact, help, nodes: nodes.map((node) => node.html + " " + node.failureSummary)}))),
    (error) => done([{id: "axe", impact: "critical", help: String(error), nodes: []}]));
"""


def require(what: str, path: str | Path | None) -> Path:
    """Leave a test out if what it needs is not installed, unless that is needed."""
    if path is not None and Path(path).exists():
        return Path(path)
    if os.environ.get(NEEDED):
        pytest.fail(f"{NEEDED} is set, and there is no {what}")
    pytest.skip(f"{what} is not installed; `make test-browser` says how to get it")


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """One browser with a new profile, ended afterwards; left out where there is none."""
    browser = require("chromium", shutil.which("chromium"))
    driver = require("chromedriver", shutil.which("chromedriver"))
    options = Options()
    options.binary_location = str(browser)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, Service(str(driver)))
    try:
        yield started
    finally:
        started.quit()


class Page:
    """A tab with a page of the playground, and what people do with it. Everything waits until it can be done."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, size: tuple[int, int] = WIDE, **media: str) -> Page:
        """A page as a new visitor sees it; `media`: features such as `prefers_color_scheme="dark"`."""
        self.resize(size)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        # A page of the same origin, so that what is stored can be cleared before the page itself begins.
        self.driver.get(f"{url.partition('/playground')[0]}/playground/icon.svg")
        self.driver.execute_script("localStorage.clear(); sessionStorage.clear();")
        self.driver.get(url)
        return self

    def resize(self, size: tuple[int, int]) -> None:
        """Pages of phones are narrower than any window may be."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """What the condition gives as soon as that is true."""
        waiting = WebDriverWait(
            self.driver,
            WAIT_SECONDS,
            poll_frequency=0.05,
            ignored_exceptions=(NoSuchElementException, StaleElementReferenceException),
        )
        return waiting.until(lambda _: condition(), what)

    def all(self, selector: str) -> list[WebElement]:
        """Those that are there now."""
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def shown(self, selector: str) -> list[WebElement]:
        """The elements that can be seen now."""
        found: list[WebElement] = self.run("return shown(document, arguments[0]);", selector)
        return found

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that can be seen now."""
        found: list[str] = self.run(
            "return shown(document, arguments[0]).map((each) => each.innerText.trim());", selector
        )
        return found

    def find(self, selector: str) -> WebElement:
        """The first element that can be seen."""
        return self._first(f"{selector} is not seen", "return shown(document, arguments[0]).slice(0, 1);", selector)

    def button(self, text: str, within: str = "body") -> WebElement:
        """The button with this text or label."""
        script = """
            const text = (each) => each.textContent.trim().replace(/\\s+/g, " ");
            const named = (each) => [text(each), each.ariaLabel].includes(arguments[1]);
            return shown(document, arguments[0]).slice(0, 1).flatMap((each) => shown(each, "button")).filter(named);
        """
        return self._first(f"no button {text}", script, within, text)

    def field(self, name: str, within: str = "body") -> WebElement:
        """The control with this label."""
        script = """
            const named = (each) => each.innerText.replace(" needed", "").trim() === arguments[1];
            return shown(document, arguments[0]).slice(0, 1).flatMap((each) => shown(each, "label")).filter(named)
                .map((each) => document.getElementById(each.htmlFor)).filter(Boolean);
        """
        return self._first(f"no field {name}", script, within, name)

    def _first(self, fault: str, script: str, *arguments: str) -> WebElement:
        """The first element that a script returns, as soon as there is one."""
        found: list[WebElement] = self.until(lambda: self.run(script, *arguments), fault)
        return found[0]

    def run(self, script: str, *arguments: str) -> Any:
        """Returns the result of a script, which may call `shown(root, selector)`."""
        return self.driver.execute_script(SHOWN + script, *arguments)

    def type(self, control: WebElement, text: str) -> None:
        """In place of what stands there."""
        control.send_keys(Keys.CONTROL, "a")
        control.send_keys(Keys.DELETE)
        if text and max(text) > LAST_TYPED:
            self.driver.execute_cdp_cmd("Input.insertText", {"text": text})
        elif text:
            control.send_keys(text)

    def choose(self, control: WebElement, text: str) -> None:
        """An option of a select."""
        Select(control).select_by_visible_text(text)

    def keys(self, *keys: str) -> None:
        """To whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> WebElement:
        """What has the focus."""
        return self.driver.switch_to.active_element

    def tab_to(self, wanted: Callable[[WebElement], bool], *, back: bool = False) -> WebElement:
        """Press Tab, or Shift and Tab, until the focus is on what is wanted."""
        for _ in range(MOST_TABS):
            held = ActionChains(self.driver)
            (
                held.key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT) if back else held.send_keys(Keys.TAB)
            ).perform()
            if wanted(self.focused):
                return self.focused
        raise AssertionError("the Tab key does not lead there")

    def shot(self, path: Path) -> None:
        """What can be seen, as a PNG file."""
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def faults(self) -> list[dict[str, Any]]:
        """What axe finds that is serious or critical."""
        self.driver.execute_script(require("axe-core", AXE).read_text())
        found: list[dict[str, Any]] = self.driver.execute_async_script(RUN_AXE)
        return [fault for fault in found if fault["impact"] in SERIOUS]

    def console_errors(self) -> list[str]:
        """What the page's scripts complained about since it was asked last; answers of the server are no complaints."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE" and entry["source"] != "network"]
