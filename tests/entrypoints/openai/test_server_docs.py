"""docs/server.md names every route, metric and error code of the HTTP server, and none that does not exist."""

from __future__ import annotations

import re

import httpx
from support.server import REPOSITORY, ServerProcess

DOCUMENT = (REPOSITORY / "docs" / "server.md").read_text()
ROUTE = re.compile(r"`(GET|POST|DELETE) (/[^`]*)`")


def section(title: str) -> str:
    """What stands below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found.group(1)


def test_every_route_is_there_and_no_other(strict_server: ServerProcess) -> None:
    paths = httpx.get(f"{strict_server.url}/openapi.json").json()["paths"]
    served = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert set(ROUTE.findall(section("Routes"))) == served


def test_every_metric_is_there_and_no_other(strict_server: ServerProcess) -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", section("Metrics"), re.MULTILINE)
    named = set(re.findall(r"`([a-z0-9_]+)`", "\n".join(rows)))
    text = httpx.get(strict_server.metrics_url).text
    families = dict(re.findall(r"^# TYPE fastdeploy_lp:(\S+) (\S+)$", text, re.MULTILINE))
    assert named == {name for name in families if not name.endswith("_created")}


def test_every_error_code_is_there() -> None:
    sources = (REPOSITORY / "fastdeploy_lp" / "entrypoints" / "openai").rglob("*.py")
    in_code = {
        code
        for path in sources
        for code in re.findall(
            r'(?:code=|^ +\d{3}: \(|NotFoundError\([^)]*, )"([a-z_]+)"', path.read_text(), re.MULTILINE
        )
    }
    assert in_code
    assert in_code <= set(re.findall(r"`([a-z_]+)`", section("Failures")))
