"""The conversation: streaming, stopping, going on, side by side, and the request as a program."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import Page
from support.playground import (
    CHAIN,
    CHIP,
    answered,
    ask,
    chips,
    errors,
    next_request,
    ready,
    set_argument,
    settle,
    unfold,
)
from support.server import ServerProcess, server_environment

pytestmark = pytest.mark.browser
SENTENCE = "the quick brown fox jumps over the lazy dog"


def force(page: Page, text: str = SENTENCE) -> None:
    set_argument(page, "ForcedSequenceLogitsProcessor", "text", text)


def test_an_answer_streams_in_and_stops_on_request(page: Page) -> None:
    set_argument(page, "TakesEverything", "ratio", "0.5")
    set_argument(page, "TakesEverything", "pause", "0.05")
    settle(page, "max_tokens", "900")
    ask(page)
    page.until(lambda: len(page.all(CHIP)) >= 2, "no tokens come")
    assert page.find(".answer").get_attribute("aria-busy") == "true"
    before = len(page.all(CHIP))
    page.until(lambda: len(page.all(CHIP)) > before, "no more tokens come")
    page.button("Stop").click()
    (answer,) = answered(page)
    assert 2 <= len(page.all(CHIP)) < 900
    assert "stopped by you" in answer.text
    assert page.find("#send").is_enabled()
    assert page.focused.get_attribute("id") == "message"


def test_the_server_ends_what_was_stopped(page: Page, served: ServerProcess) -> None:
    set_argument(page, "TakesEverything", "ratio", "0.5")
    set_argument(page, "TakesEverything", "pause", "0.05")
    settle(page, "max_tokens", "900")
    ask(page)
    page.until(lambda: httpx.get(f"{served.url}/load").json()["running"] == 1)
    page.button("Stop").click()
    page.until(lambda: httpx.get(f"{served.url}/load").json()["server_load"] == 0)


def test_tokens_are_the_answers_text(page: Page) -> None:
    force(page, "fox ü 🦊\nthe end")
    settle(page, "max_tokens", "40")
    ask(page)
    answered(page)
    text = "".join(chips(page)).replace("·", "").replace("↵", "\n")
    assert text.startswith("fox ü 🦊\nthe end")
    assert text.count("�") < len(text)


def test_messages_go_on_and_begin_anew(page: Page) -> None:
    page.find("details:has(#system) summary").click()
    page.type(page.find("#system"), "Be brief.")
    force(page)
    settle(page, "max_tokens", "30")
    ask(page, "One")
    answered(page)
    ask(page, "Two")
    answered(page, 2)
    page.type(page.find("#message"), "Three")
    messages = next_request(page)["messages"]
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [each["content"] for each in messages][0::5] == ["Be brief.", "Three"]
    assert messages[2]["content"].startswith(SENTENCE)
    page.button("New chat").click()
    assert page.all(".answer") == []
    assert [each["role"] for each in next_request(page)["messages"]] == ["system", "user"]


def test_run_again_keeps_the_old_answer_beside_the_new_one_and_what_is_being_typed(page: Page) -> None:
    settle(page, "max_tokens", "12")
    ask(page)
    answered(page)
    before = chips(page)
    page.find("#message").send_keys("next")
    force(page)
    page.button("Run again").click()
    old, new = answered(page, 2)
    assert chips(page, ".answer.former .chip") == before
    assert "".join(chips(page, ".answer:not(.former) .chip")).startswith(SENTENCE)
    assert old.rect["y"] == new.rect["y"]
    assert old.text.startswith("Answer 1\nno processor")
    assert new.text.startswith("Answer 2\nForcedSequence")
    assert "differs from token 1 on (Answer 1)" in new.text
    assert len(page.all(".chip.differs")) == 2
    assert page.find("#message").get_property("value") == "next"
    assert len(page.all(".question")) == 1
    # The chat continues with the new answer.
    assert next_request(page)["messages"][1]["content"].startswith(SENTENCE)


def test_answers_of_earlier_runs_are_folded_away(page: Page) -> None:
    settle(page, "max_tokens", "4")
    ask(page)
    answered(page)
    for count in (2, 3):
        page.button("Run again").click()
        answered(page, count)
    shown = [text.split("\n")[0] for text in page.texts(".answer")]
    assert shown == ["Answer 2", "Answer 3"]
    assert "the same tokens (Answer 2)" in page.all(".answer")[-1].text
    summary = page.find(".earlier > summary")
    assert summary.text == "1 earlier answer"
    summary.click()
    assert page.find(".earlier .answer").text.startswith("Answer 1")


def test_another_run_draws_anew_unless_the_settings_have_changed(page: Page) -> None:
    def seeds() -> list[str]:
        parts = [part for each in page.all(".answer-status") for part in each.text.split(" · ")]
        return [part for part in parts if part.startswith("seed")]

    settle(page, "temperature", "1")
    settle(page, "max_tokens", "4")
    ask(page)
    answered(page)
    page.button("Run again").click()
    answered(page, 2)
    first, second = seeds()
    assert first != second
    settle(page, "temperature", "0.5")
    page.button("Run again").click()
    answered(page, 3)
    assert seeds()[-1] == second


def test_a_refused_run_leaves_the_answer_as_it_was(page: Page) -> None:
    settle(page, "max_tokens", "4")
    ask(page)
    (answer,) = answered(page)
    before = answer.text
    settle(page, "top_k", "-7")
    page.button("Run again").click()
    page.until(lambda: errors(page), "no error is shown")
    (answer,) = answered(page)
    assert answer.text == before
    settle(page, "top_k", "")
    page.button("Run again").click()
    answered(page, 2)


def test_the_speed_is_shown_while_an_answer_arrives_and_afterwards(page: Page) -> None:
    set_argument(page, "TakesEverything", "ratio", "0.5")
    set_argument(page, "TakesEverything", "pause", "0.05")
    settle(page, "max_tokens", "900")
    ask(page)
    shown = re.compile(r"(\d+) tokens · ([\d.]+) tokens/s · first token after [\d.]+ s")
    page.until(lambda: shown.search(page.find(".answer-status").text), "no speed is shown")
    assert page.find(".answer").get_attribute("aria-busy") == "true"
    page.button("Stop").click()
    answered(page)
    found = shown.search(page.find(".answer-status").text)
    assert found is not None
    # The processor alone takes 50 ms a token.
    assert 0 < float(found[2]) <= 20


def test_the_speed_is_that_of_the_tokens_after_the_first_ones(page: Page, served: ServerProcess) -> None:
    script = """
        const [root, done] = arguments;
        import(root + "/stopwatch.js").then(({ Stopwatch }) => {
            let now = 1000;
            const watch = new Stopwatch(() => now);
            const read = () => [watch.tokensPerSecond ?? null, watch.secondsToFirst ?? null];
            const found = [];
            for (const [moment, tokens] of [[1100, 0], [1500, 1], [1500, 1], [2500, 5], [3500, 5]]) {
                now = moment;
                watch.count(tokens);
                found.push(read());
            }
            done(found);
        }, (error) => done(String(error)));
    """
    found = page.driver.execute_async_script(script, f"{served.url}/playground")
    assert found == [[None, None], [None, 0.5], [None, 0.5], [4, 0.5], [4, 0.5]]


def test_side_by_side_with_the_chain_off_and_the_same_seed(page: Page) -> None:
    force(page, "the quick")
    settle(page, "temperature", "1")
    settle(page, "max_tokens", "10")
    page.find("#compare").click()
    ask(page)
    on, off = answered(page, 2)
    assert on.text.startswith("With the chain")
    assert off.text.startswith("Chain off")
    assert "".join(chips(page, ".answer:first-child .chip")).startswith("the quick")
    assert not "".join(chips(page, ".answer:nth-child(2) .chip")).startswith("the quick")
    (seed,) = {part for each in (on, off) for part in each.text.split(" · ") if part.startswith("seed")}
    assert seed.removeprefix("seed ").split("\n")[0].isdigit()
    assert "differs from token 1 on" in on.text
    assert len(page.all(".chip.differs")) == 2


def test_without_a_trace_the_text_is_plain(page: Page) -> None:
    force(page)
    page.find("#trace").click()
    ask(page)
    (answer,) = answered(page)
    assert SENTENCE in answer.text
    assert page.all(CHIP) == []
    assert "logits_processors_trace" not in next_request(page)


def test_sampling_controls_are_sent(page: Page) -> None:
    wanted = {
        "temperature": 0.5,
        "max_tokens": 7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "seed": 11,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
    }
    for name, value in wanted.items():
        settle(page, name, str(value))
    settle(page, "Tokens shown", "3")
    page.field("stop", "#sampling").send_keys("END", Keys.ENTER, "STOP")
    body = next_request(page)
    assert {name: body[name] for name in wanted} == wanted
    assert body["stop"] == ["END", "STOP"]
    assert body["logits_processors_trace"] == {"top_k": 3}
    ask(page)
    answered(page)
    assert "seed 11" in page.find(".answer-status").text
    assert errors(page) == []


@pytest.mark.parametrize(("button", "language"), [("Copy as curl", "bash"), ("Copy as Python", "python")])
def test_a_copied_program_runs_as_it_is(page: Page, button: str, language: str) -> None:
    force(page, "the lazy dog's")
    settle(page, "max_tokens", "16")
    settle(page, "stop", 'a"b')
    page.type(page.find("#message"), 'It\'s "me" $HOME `x` \\n')
    page.button(button).click()
    code = str(page.find("#snippet-code").get_property("value"))
    assert page.find("#snippet-title").text == button
    command = ["bash", "-ec", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=server_environment())
    assert done.returncode == 0, done.stderr
    assert "the lazy dog's" in done.stdout
    assert "invalid_request_error" not in done.stdout
    page.keys(Keys.ESCAPE)
    page.until(lambda: not page.all("#snippet[open]"))


def test_presets_outlive_the_page(page: Page, served: ServerProcess) -> None:
    page.find("#preset-panel summary").click()
    page.button("Save", "#presets").click()
    assert errors(page) == ["give it a name"]
    force(page)
    settle(page, "temperature", "0.7")
    page.find(f"{unfold(page, 'TakesAnything')} input[role=switch]").click()
    wanted = next_request(page)
    page.type(page.find("#preset-name"), "mine")
    page.button("Save", "#presets").click()
    assert errors(page) == []
    page.driver.refresh()
    page.until(lambda: "is ready" in page.find("#status").text)
    assert next_request(page) != wanted
    page.find("#preset-panel summary").click()
    page.button("Load", "#presets").click()
    assert next_request(page) == wanted
    page.button("Delete", "#presets").click()
    assert "mine" not in page.find("#preset").text
    assert not page.button("Delete", "#presets").is_enabled()


def test_ready_made_presets_are_those_of_declared_processors(page: Page) -> None:
    page.find("#preset-panel summary").click()
    ready_made = [each.text for each in page.all("#preset optgroup[label='Ready-made'] option")]
    assert ready_made == ["Begin the answer with a phrase", "Repeat fewer words"]
    settle(page, "temperature", "0.25")
    force(page)
    page.choose(page.find("#preset"), "Repeat fewer words")
    assert not page.button("Delete", "#presets").is_enabled()
    page.button("Load", "#presets").click()
    body = next_request(page)
    wanted = {"name": "RepetitionPenaltyLogitsProcessor", "params": {"repetition_penalty": 1.3}}
    assert (body["logits_processors"], body["temperature"]) == ([wanted], 0.25)
    ask(page)
    answered(page)
    assert errors(page) == []


@pytest.mark.parametrize("missing", [True, False])
def test_a_saved_preset_is_offered_where_its_processors_are_declared(page: Page, missing: bool) -> None:
    chain = [{"name": "Elsewhere", "on": missing, "params": {}}, {"name": CHAIN[0], "on": True, "params": {}}]
    presets = json.dumps({"from elsewhere": {"chain": chain}})
    page.driver.execute_script("localStorage.setItem('fastdeploy_lp.presets', arguments[0])", presets)
    page.driver.refresh()
    ready(page)
    page.find("#preset-panel summary").click()
    assert ("from elsewhere" in page.find("#preset").text) is not missing
    note = "1 saved here needs processors that this server does not declare: Elsewhere"
    assert (note in page.find("#presets").text) is missing
