"""One browser and one server for all tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from support.browser import Page, chromium
from support.playground import CHAIN, CONTEXT, KEPT, KEY, ROOT_PATH, TRIED, ready
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has room for long answers."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("playground"), context=CONTEXT)


@pytest.fixture(scope="session")
def served(checkpoint: Path) -> Iterator[ServerProcess]:
    """The playground without keys, metrics on its port."""
    options = ["--playground", "--logits-processors-max-faults", "0", "--logits-processors", *CHAIN]
    with ServerProcess(*options, model=str(checkpoint), own_metrics_port=False) as running:
        yield running


@pytest.fixture(scope="session")
def locked(checkpoint: Path) -> Iterator[ServerProcess]:
    """The playground of a server that wants a key, as a proxy may show it, one processor only tried, one mandatory."""
    options = ["--playground", "--api-key", KEY, "--root-path", ROOT_PATH]
    options += ["--logits-processors", CHAIN[0], f"{TRIED}={CHAIN[0]}", f"{KEPT}={CHAIN[0]}"]
    options += ["--shadow", TRIED, "--mandatory", KEPT]
    with ServerProcess(*options, model=str(checkpoint)) as running:
        yield running


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """The browser."""
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def blank(driver: webdriver.Chrome) -> Iterator[Page]:
    """A tab whose page's scripts must not fail."""
    page = Page(driver)
    page.console_errors()
    yield page
    # Whatever still streams ends with its page.
    driver.get("about:blank")
    assert page.console_errors() == []


@pytest.fixture
def page(blank: Page, served: ServerProcess) -> Page:
    """The playground, ready."""
    return ready(blank.open(f"{served.url}/playground"))
