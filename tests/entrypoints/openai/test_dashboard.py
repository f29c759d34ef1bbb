"""configs/grafana: every metric that the dashboard asks for is one that the server exports, under the same labels."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from support.chat import HELLO, post
from support.server import REPOSITORY, ServerProcess

DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "configs" / "grafana" / "fastdeploy_lp.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
NAME = re.compile(r"fastdeploy_lp:[a-z0-9_]+")


@pytest.fixture(scope="module")
def samples(strict_server: ServerProcess) -> dict[str, set[str]]:
    """The labels of each exported sample, after a request that ended by itself."""
    post(strict_server, {"messages": HELLO, "max_tokens": 2}).raise_for_status()
    lines = [line for line in httpx.get(strict_server.metrics_url).text.splitlines() if not line.startswith("#")]
    found: dict[str, set[str]] = {}
    for line in lines:
        name, _, labels = line.rpartition(" ")[0].partition("{")
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_the_dashboard_asks_for_is_exported(expression: str, samples: dict[str, set[str]]) -> None:
    names = NAME.findall(expression)
    assert names
    assert set(names) <= samples.keys()
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    assert grouped <= set.union(*(samples[name] for name in names))


def test_what_the_server_measures_is_on_the_dashboard(samples: dict[str, set[str]]) -> None:
    """Left out: sums of what is shown otherwise, and what requests ask for."""
    shown = {_family(name) for expression in EXPRESSIONS for name in NAME.findall(expression)}
    left_out = {
        *("requests_number", "request_inference_time_seconds", "http_request_duration_seconds", "request_params_n"),
        *("request_params_max_tokens", "kv_cache_blocks", "kv_cache_blocks_used", "logits_processor_requests"),
        *("logits_processor_skipped_greedy", "logits_processor_shadow_requests"),
    }
    exported = {_family(name) for name in samples if not name.endswith("_created")}
    assert exported - shown == {f"fastdeploy_lp:{name}" for name in left_out}


def test_panels_do_not_overlap_and_name_their_lines() -> None:
    cells = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert all(target["legendFormat"] for panel in PANELS for target in panel["targets"])


def _family(sample: str) -> str:
    return re.sub("_(bucket|sum|count|total)$", "", sample)
