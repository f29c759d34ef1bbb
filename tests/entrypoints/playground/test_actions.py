"""What processors do beyond their logits: text that was taken back, values, and the end of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Page
from support.playground import CHIP, answered, ask, chips, errors, ready, settle, unfold
from support.server import ServerProcess

pytestmark = pytest.mark.browser
BANS, EMITS = "PhraseBanLogitsProcessor", "support.rewinding:Rewinds"


@pytest.fixture(scope="module")
def acting(checkpoint: Path) -> Iterator[ServerProcess]:
    """The playground of a server whose processors act."""
    with ServerProcess("--playground", "--logits-processors", BANS, EMITS, model=str(checkpoint)) as running:
        yield running


def test_what_was_taken_back_is_struck_through_and_named(blank: Page, acting: ServerProcess) -> None:
    page = ready(blank.open(f"{acting.url}/playground"))
    settle(page, "max_tokens", "16")
    settle(page, "temperature", "0")
    ask(page)
    answered(page)
    plain = chips(page)
    place = next(at for at, text in enumerate(plain) if text.isascii() and text.strip().isalpha())
    phrase = plain[place].strip()
    assert page.all(".taken-back") == []
    within = unfold(page, BANS)
    page.button("Add an entry", within).click()
    page.keys(phrase)
    page.field("emits", unfold(page, "Rewinds")).click()
    page.button("New chat").click()
    ask(page)
    (answer,) = answered(page)
    assert errors(page) == []
    assert phrase not in "".join(chips(page))
    taken = page.all(".taken-back")
    assert taken[0].text.strip() == phrase
    assert taken[0].get_attribute("title") == f"{BANS} took this back"
    summary = answer.find_element("css selector", ".answer-status").text
    assert f"{len(taken)} rewind" in summary
    assert "Rewinds emitted [0,1,2," in summary
    # The details of the token that came in its place say the same.
    page.all(CHIP)[place].click()
    stage = page.find(".stage")
    assert "PhraseBan" in stage.text
    assert stage.text.replace("␣", "").endswith(f"took back {phrase}")
