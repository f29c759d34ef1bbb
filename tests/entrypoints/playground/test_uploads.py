"""Uploads of WebAssembly modules: chosen or dropped, used by the next request, deleted, or refused with the reason."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Page
from support.playground import answered, ask, card, chips, errors, next_request, order, ready, settle
from support.server import ServerProcess
from support.wasm import NO_REPEATS

pytestmark = pytest.mark.browser
BIAS = "LogitBiasLogitsProcessor"
INPUT = "#upload-file"
DROP = """
const [name, content] = arguments;
const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([bytes], name));
const options = {dataTransfer, bubbles: true, cancelable: true};
for (const kind of ["dragover", "drop"]) document.querySelector("#chain").dispatchEvent(new DragEvent(kind, options));
"""


@pytest.fixture(scope="module")
def taking(checkpoint: Path) -> Iterator[ServerProcess]:
    """The playground of a server that takes uploads."""
    options = ["--playground", "--allow-uploads", "--logits-processors", BIAS]
    with ServerProcess(*options, model=str(checkpoint)) as running:
        yield running


@pytest.fixture
def open_to_uploads(blank: Page, taking: ServerProcess) -> Iterator[Page]:
    """The playground, without uploads before and afterwards."""
    page = ready(blank.open(f"{taking.url}/playground"))
    yield page
    for name in uploads(page):
        delete(page, name)


def uploaded(page: Page) -> str:
    """The name of the only upload, when it is on."""
    page.until(lambda: page.find(f".processor.on:not({card(BIAS)})"))
    (name,) = uploads(page)
    return name


def uploads(page: Page) -> list[str]:
    return [name for name in order(page) if name != BIAS]


def delete(page: Page, name: str) -> None:
    disclosure = page.find(f"{card(name)} .disclosure")
    if disclosure.get_attribute("aria-expanded") == "false":
        disclosure.click()
    page.button("Delete this upload", card(name)).click()
    page.until(lambda: name not in order(page))


def test_a_dropped_module_is_on_and_runs(open_to_uploads: Page) -> None:
    page = open_to_uploads
    settle(page, "max_tokens", "12")
    settle(page, "temperature", "0")
    ask(page)
    answered(page)
    plain = chips(page)
    page.driver.execute_script(DROP, "No-Repeats.wasm", base64.b64encode(NO_REPEATS.read_bytes()).decode())
    name = uploaded(page)
    assert name.startswith("no_repeats_")
    assert [each["name"] for each in next_request(page)["logits_processors"]] == [name]
    page.button("New chat").click()
    ask(page)
    answered(page)
    assert chips(page) != plain


def test_a_chosen_file_is_uploaded_and_can_be_deleted(open_to_uploads: Page) -> None:
    page = open_to_uploads
    page.find(INPUT).send_keys(str(NO_REPEATS))
    delete(page, uploaded(page))
    assert next_request(page)["logits_processors"] == []


def test_the_reason_is_shown_for_a_file_that_is_no_module(open_to_uploads: Page, tmp_path: Path) -> None:
    page = open_to_uploads
    wrong = tmp_path / "wrong.wasm"
    wrong.write_bytes(b"no module")
    page.find(INPUT).send_keys(str(wrong))
    page.until(lambda: errors(page))
    (error,) = errors(page)
    assert error.startswith("module: ")
    assert uploads(page) == []
    # Afterwards the place takes a right one, and the error is gone.
    page.find(INPUT).send_keys(str(NO_REPEATS))
    uploaded(page)
    assert errors(page) == []


def test_a_server_without_uploads_has_no_place_for_them(page: Page) -> None:
    assert not page.driver.find_element("css selector", INPUT).is_displayed()
