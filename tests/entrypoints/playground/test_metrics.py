"""The view of live numbers, and how it reads them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.browser import Page
from support.playground import CHAIN, KEY, ROOT_PATH, errors
from support.server import ServerProcess

pytestmark = pytest.mark.browser
NAMES = [spec.rpartition(":")[2] for spec in CHAIN]
MODULES = """
const [root, done] = arguments;
const compute = (Scrape) => {{ {code} }};
import(root + "/scrape.js").then(({{ Scrape }}) => done(compute(Scrape)), (error) => done(String(error)));
"""
TEXT = r"""
# HELP fastdeploy_lp:generation_tokens_total Tokens
# TYPE fastdeploy_lp:generation_tokens_total counter
fastdeploy_lp:generation_tokens_total {tokens}
fastdeploy_lp:logits_processor_rows_total{{processor="a \"b\", c}}"}} {rows}
fastdeploy_lp:logits_processor_rows_total{{processor="other"}} 1e2
fastdeploy_lp:time_to_first_token_seconds_bucket{{le="+Inf"}} 4
fastdeploy_lp:time_to_first_token_seconds_count {count}
fastdeploy_lp:time_to_first_token_seconds_sum {sum} 1395066363000
broken line {{
"""


def computed(page: Page, root: str, code: str) -> Any:
    """What the page's own modules make of something."""
    return page.driver.execute_async_script(MODULES.format(code=code), root)


def test_rates_come_from_two_looks(blank: Page, served: ServerProcess) -> None:
    page = blank.open(f"{served.url}/playground/metrics")
    first = TEXT.format(tokens=10, rows=5, count=2, sum=0.5)
    second = TEXT.format(tokens=50, rows=25, count=4, sum=1.5)
    found = computed(
        page,
        f"{served.url}/playground",
        f"""
        const first = new Scrape({first!r}, 1000), second = new Scrape({second!r}, 3000);
        return [second.rate(first, "generation_tokens_total"),
                second.rate(first, "logits_processor_rows_total", 'a "b", c}}'),
                second.mean(first, "time_to_first_token_seconds"),
                first.rate(second, "generation_tokens_total"),
                second.processors, second.value("logits_processor_rows_total")];
        """,
    )
    assert found[:3] == [20, 10, 0.5]
    # A clock that stands still makes no rate.
    assert found[3] == 0
    assert found[4:] == [['a "b", c}', "other"], 125]


def test_a_server_that_began_anew_counts_from_nothing(blank: Page, served: ServerProcess) -> None:
    page = blank.open(f"{served.url}/playground/metrics")
    first, second = (TEXT.format(tokens=tokens, rows=0, count=0, sum=0) for tokens in (1000, 30))
    code = f'return new Scrape({second!r}, 2000).rate(new Scrape({first!r}, 1000), "generation_tokens_total")'
    assert computed(page, f"{served.url}/playground", code) == 30


def test_cards_and_the_table_show_what_the_server_does(blank: Page, served: ServerProcess) -> None:
    page = blank.open(f"{served.url}/playground/metrics")
    page.choose(page.find("#interval"), "second")
    page.until(lambda: page.all("#processors th"), "no numbers come")
    assert [each.text for each in page.all("#processors th")] == NAMES
    assert len(page.all(".metric")) == 8
    params = {"ratio": 0.5, "pause": 0.01}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 200,
        "ignore_eos": True,
        "logits_processors": [{"name": "TakesEverything", "params": params}],
    }
    httpx.post(f"{served.url}/v1/chat/completions", json=body).raise_for_status()

    def shows_work() -> bool:
        card = next(each for each in page.all(".metric") if "Tokens generated" in each.text)
        points = card.find_elements("css selector", "polyline")[-1].get_attribute("points") or ""
        heights = {point.split(",")[1] for point in points.split()}
        return len(heights) > 1

    def row_is_whole() -> bool:
        row = next(each for each in page.all("#processors tr") if each.text.startswith("TakesEverything"))
        label = row.find_elements("css selector", "svg[role=img]")[0].get_attribute("aria-label")
        return row.text.endswith("in service") and bool(label)

    page.until(shows_work, "no tokens are shown")
    # The page replaces its table each second, with all that was found in it.
    page.until(row_is_whole, "the processor's row lacks its state or its history")


def test_it_pauses_and_goes_on(blank: Page, served: ServerProcess) -> None:
    page = blank.open(f"{served.url}/playground/metrics")
    page.until(lambda: page.all("#processors th"), "no numbers come")
    page.button("Pause").click()
    assert page.find("#status").text == "paused"
    assert page.find("#pause").get_attribute("aria-pressed") == "true"
    page.button("Pause").click()
    page.until(lambda: page.find("#status").text == "live")


def test_metrics_elsewhere_are_told(blank: Page, locked: ServerProcess) -> None:
    page = blank.open(f"{locked.url}{ROOT_PATH}/playground/metrics")
    page.until(lambda: errors(page) == ["this server wants an API key"])
    page.keys(KEY)
    page.button("Use").click()
    page.until(lambda: "--metrics-port" in page.find("#status").text)
