"""The panel of processors: forms made from schemas, on and off, shadow, and the order of a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.browser import Page
from support.playground import (
    CHAIN,
    KEPT,
    TRIED,
    answered,
    ask,
    card,
    chips,
    errors,
    next_request,
    order,
    set_argument,
    unfold,
    unlock,
)
from support.server import ServerProcess

pytestmark = pytest.mark.browser
NAMES = [spec.rpartition(":")[2] for spec in CHAIN]
EVERYTHING = "TakesEverything"


def entries(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = next_request(page)["logits_processors"]
    return found


def test_there_is_a_card_for_each_declared_processor_in_the_servers_order(page: Page) -> None:
    assert order(page) == NAMES
    assert entries(page) == []
    for name in NAMES:
        text = page.find(unfold(page, name)).text
        assert name in text.replace("\n", "")


def test_a_form_has_a_control_for_every_kind_of_argument(page: Page) -> None:
    within = unfold(page, EVERYTHING)
    for name, text in {"ratio": "0.5", "steps": "7", "title": "A title", "phrase": ""}.items():
        if text:
            page.type(page.field(name, within), text)
    page.choose(page.field("mode", within), "hard")
    page.field("eager", within).click()
    words = f"{within} fieldset:has(> legend > code)"
    groups = {str(each.text).split("\n")[0]: each for each in page.all(words)}
    assert {"words", "marked", "weights", "span", "phrase", "inner"} <= set(groups)

    def buttons(group: str, text: str) -> None:
        next(each for each in groups[group].find_elements("css selector", "button") if each.text == text).click()

    buttons("words", "Add an entry")
    page.keys("one")
    buttons("words", "Add an entry")
    page.keys("two")
    groups["marked"].find_element("css selector", ".token-picker input").send_keys("fox", Keys.ENTER)
    page.until(lambda: groups["marked"].find_elements("css selector", ".token-choice"))
    token = groups["marked"].find_element("css selector", ".token-choice")
    token_id = int(token.text.split()[-1])
    token.click()
    groups["weights"].find_element("css selector", "input").send_keys("a key")
    buttons("weights", "Add")
    page.keys("-2.5")
    first, second = groups["span"].find_elements("css selector", "input")
    first.send_keys("3")
    second.send_keys("0.25")
    groups["phrase"].find_element("css selector", "textarea").send_keys("over the")
    groups["inner"].find_elements("css selector", "input")[0].send_keys(Keys.CONTROL, "a")
    page.keys("2")
    groups["inner"].find_element("css selector", "textarea").send_keys("within")
    page.type(page.field("anything", within), '{"a": [1, null]}')
    wanted = {
        "ratio": 0.5,
        "steps": 7,
        "mode": "hard",
        "eager": True,
        "title": "A title",
        "words": ["one", "two"],
        "marked": [token_id],
        "weights": {"a key": -2.5},
        "span": [3, 0.25],
        "phrase": "over the",
        "inner": {"depth": 2, "label": "within"},
        "anything": {"a": [1, None]},
    }
    assert entries(page) == [{"name": EVERYTHING, "params": wanted}]
    ask(page)
    answered(page)
    assert errors(page) == []


def test_the_other_form_of_a_phrase_is_token_ids(page: Page) -> None:
    within = unfold(page, "ForcedSequenceLogitsProcessor")
    page.choose(page.find(f"{within} select.kind"), "token ids")
    picker = page.find(f"{within} .token-picker input")
    picker.send_keys("fox")
    page.button("Find", within).click()
    page.find(f"{within} .token-choice").click()
    (entry,) = entries(page)
    assert all(isinstance(token, int) for token in entry["params"]["forced_sequence"])
    page.find(f"{within} .tokens .icon-button").click()
    page.button("Copy as curl").click()
    assert errors(page) == ["is needed"]


def test_a_token_gets_a_bias_by_its_text_and_is_removed_again(page: Page) -> None:
    within = unfold(page, "LogitBiasLogitsProcessor")
    page.type(page.find(f"{within} .token-picker input"), "fox")
    page.keys(Keys.ENTER)
    page.find(f"{within} .token-choice").click()
    page.keys("-100")
    (entry,) = entries(page)
    assert list(entry["params"]["logit_bias"].values()) == [-100]
    page.find(f"{within} .entries .icon-button").click()
    assert entries(page)[0]["params"] == {}


def test_arguments_that_the_server_does_not_know_are_json(page: Page) -> None:
    set_argument(page, "TakesAnything", "Arguments", '{"free": 1}')
    assert entries(page) == [{"name": "TakesAnything", "params": {"free": 1}}]
    set_argument(page, "TakesAnything", "Arguments", '{"free"')
    ask(page)
    assert errors(page)[0].startswith("is no JSON")


def test_only_what_is_on_is_sent(page: Page) -> None:
    set_argument(page, EVERYTHING, "ratio", "0.5")
    assert [entry["name"] for entry in entries(page)] == [EVERYTHING]
    page.find(f"{card(EVERYTHING)} [role=switch]").click()
    assert entries(page) == []


def test_a_processor_in_shadow_is_counted_and_changes_nothing(page: Page, served: ServerProcess) -> None:
    set_argument(page, "ForcedSequenceLogitsProcessor", "text", "the quick brown")
    page.field("Shadow: count what it would change", card("ForcedSequenceLogitsProcessor")).click()
    assert entries(page)[0]["shadow"] is True
    ask(page)
    (answer,) = answered(page)
    assert "ForcedSequenceLogitsProcessor in shadow would have changed" in answer.text
    assert not "".join(chips(page)).startswith("the quick brown")
    page.find(".chip.shadowed").click()
    assert "in shadow, it would be" in page.find(".inspector").text
    cards = httpx.get(f"{served.url}/v1/logits_processors").json()["data"]
    assert next(each["shadow"]["requests"] for each in cards if each["name"].startswith("Forced")) >= 1


def test_a_processor_that_the_server_keeps_in_shadow_says_so(blank: Page, locked: ServerProcess) -> None:
    page = unlock(blank, locked.url)
    label = "Shadow: count what it would change"
    within = unfold(page, TRIED)
    box = page.field(label, within)
    assert box.is_selected()
    assert not box.is_enabled()
    assert "--shadow" in page.find(f"#{box.get_attribute('aria-describedby')}").text
    assert "in shadow" in page.find(f"{within} .disclosure").text
    page.find(f"{within} [role=switch]").click()
    assert entries(page) == [{"name": TRIED, "params": {}}]
    other = unfold(page, CHAIN[0])
    assert page.field(label, other).is_enabled()
    assert "in shadow" not in page.find(f"{other} .disclosure").text


def test_a_mandatory_processor_is_neither_left_out_nor_moved_nor_put_into_shadow(
    blank: Page, locked: ServerProcess
) -> None:
    page = unlock(blank, locked.url)
    within = unfold(page, KEPT)
    switch = page.find(f"{within} [role=switch]")
    assert switch.is_selected()
    shadow = page.field("Shadow: count what it would change", within)
    for control in (switch, shadow, page.find(f"{within} .handle"), page.button(f"Move {KEPT} up", within)):
        assert not control.is_enabled()
    assert "--mandatory" in page.find(f"#{switch.get_attribute('aria-describedby')}").text
    assert "mandatory" in page.find(f"{within} .disclosure").text
    # It runs without being named.
    assert entries(page) == []
    # Nothing passes it.
    for name in (CHAIN[0], TRIED):
        page.find(f"{card(name)} [role=switch]").click()
    assert not page.button(f"Move {TRIED} down", unfold(page, TRIED)).is_enabled()
    assert page.button(f"Move {TRIED} up", card(TRIED)).is_enabled()


def test_dragging_a_handle_changes_the_order_of_the_request(page: Page) -> None:
    for name in (EVERYTHING, "TakesAnything"):
        page.find(f"{card(name)} [role=switch]").click()
    page.type(page.field("ratio", card(EVERYTHING)), "0.5")
    assert [entry["name"] for entry in entries(page)] == [EVERYTHING, "TakesAnything"]
    for name in (EVERYTHING, "TakesAnything"):
        page.find(f"{card(name)} .disclosure").click()
    first, last = (page.find(f"{card(name)} .handle") for name in (EVERYTHING, "TakesAnything"))
    drag = ActionChains(page.driver).move_to_element(last).click_and_hold().move_by_offset(0, -30)
    drag.move_to_element_with_offset(first, 0, -8).release().perform()
    page.until(lambda: order(page)[0] == "TakesAnything", "it was not moved")
    assert [entry["name"] for entry in entries(page)] == ["TakesAnything", EVERYTHING]
    assert sorted(order(page)) == sorted(NAMES)
    assert page.all(".dragged") == []
    ask(page)
    answered(page)
    page.find(".answer .chip").click()
    stages = [each.text for each in page.all(".stage h3")]
    assert stages[1:3] == ["TakesAnything", EVERYTHING]


def test_arrow_keys_and_buttons_change_the_order_and_say_so(page: Page) -> None:
    for name in NAMES[:2]:
        page.find(f"{card(name)} [role=switch]").click()
        page.find(f"{card(name)} .disclosure").click()
    handle = page.find(f"{card(NAMES[1])} .handle")
    handle.send_keys(Keys.ARROW_UP)
    assert order(page)[:2] == [NAMES[1], NAMES[0]]
    assert page.focused == handle
    said = page.driver.execute_script("return document.getElementById('announcer').textContent")
    assert said == f"{NAMES[1]} is now number 1 of 2"
    handle.send_keys(Keys.ARROW_UP)
    handle.send_keys(Keys.ARROW_DOWN)
    assert order(page) == NAMES
    page.button(f"Move {NAMES[0]} down", unfold(page, NAMES[0])).click()
    assert order(page)[:2] == [NAMES[1], NAMES[0]]
    up = page.button(f"Move {NAMES[0]} up", card(NAMES[0]))
    up.click()
    assert order(page) == NAMES
    assert not up.is_enabled()
    assert page.focused == page.button(f"Move {NAMES[0]} down", card(NAMES[0]))


def test_active_processors_come_first_and_the_others_in_the_servers_order(page: Page) -> None:
    last, second = NAMES[-1], NAMES[1]
    assert not page.shown(".processor .handle")
    page.find(f"{card(last)} [role=switch]").click()
    assert order(page) == [last, *NAMES[:-1]]
    assert page.focused == page.find(f"{card(last)} [role=switch]")
    page.find(f"{card(second)} [role=switch]").click()
    others = [name for name in NAMES if name not in (second, last)]
    assert order(page) == [second, last, *others]
    assert page.texts(".processor .place") == ["1", "2"]
    page.find(f"{card(last)} [role=switch]").click()
    assert order(page) == [second, *(name for name in NAMES if name != second)]


def test_typing_an_argument_keeps_the_field_when_its_card_moves(page: Page) -> None:
    set_argument(page, "RaisesOnBoom", "boom", "40")
    assert order(page)[0] == "RaisesOnBoom"
    field = page.field("boom", card("RaisesOnBoom"))
    assert page.focused == field
    assert field.get_property("value") == "40"
    assert field.is_displayed()


def test_a_filter_finds_processors_by_name_argument_and_purpose(page: Page) -> None:
    def shown() -> list[str]:
        found = page.shown(".processor")
        return [str(each.get_attribute("data-name")) for each in found]

    page.find(f"{card('TakesAnything')} [role=switch]").click()
    for text, wanted in {
        "forced": ["ForcedSequenceLogitsProcessor"],
        "logit_bias": ["LogitBiasLogitsProcessor"],
        "WORDS model": ["ForcedSequenceLogitsProcessor"],
        "nothing like it": [],
    }.items():
        page.type(page.find("#chain-filter"), text)
        # An active one is part of the request, so it stays in sight.
        assert shown() == ["TakesAnything", *wanted]
        assert page.find(".chain-filter [role=status]").text == f"1 active, {len(wanted)} of 5 others match"
    page.keys(Keys.ESCAPE)
    assert sorted(shown()) == sorted(NAMES)
    assert page.find(".chain-filter [role=status]").text == "1 active, 5 others"


def test_few_processors_need_no_filter(blank: Page, locked: ServerProcess) -> None:
    page = unlock(blank, locked.url)
    assert not page.driver.find_element("id", "chain-filter").is_displayed()
