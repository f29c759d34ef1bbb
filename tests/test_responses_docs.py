"""docs/responses.md against the code: its programs are run as they are printed, but for the port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import get_args

from support.server import REPOSITORY, ServerProcess, server_environment

from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.response_items import PREFIXES
from fastdeploy_lp.entrypoints.openai.protocol.responses import ResponsesRequest, Status
from fastdeploy_lp.entrypoints.openai.routes.response_events import GrowingItem
from fastdeploy_lp.entrypoints.openai.server_args import DEFAULT_RESPONSE_STORE_BYTES

DOCUMENT = (REPOSITORY / "docs" / "responses.md").read_text()
PRINTED_URL = "http://127.0.0.1:8180"
PROGRAM_SECONDS = 120.0


def named(title: str) -> set[str]:
    """The names in the first column below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    cells = re.findall(r"^\| (`[^|]*)\|", found.group(1), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def printed_by(language: str, interpreter: list[str], server: ServerProcess) -> str:
    (program,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    done = subprocess.run(
        [*interpreter, program.replace(PRINTED_URL, server.url)],
        capture_output=True,
        text=True,
        env=server_environment(),
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_runs(server: ServerProcess) -> None:
    assert DOCUMENT.count("```") == 2 * 2
    first, *_, last = printed_by("python", [sys.executable, "-c"], server).splitlines()
    assert "Paris" not in first
    assert last.endswith("completed")
    assert "Paris" in last


def test_the_curl_line_gets_a_response(server: ServerProcess) -> None:
    assert json.loads(printed_by("bash", ["bash", "-ec"], server))["output"][0]["content"][0]["text"]


def test_every_field_is_documented() -> None:
    inherited = GuidedRequest.model_fields.keys() - {"stream", "stream_options", "store"}
    assert named("Fields") == ResponsesRequest.model_fields.keys() - inherited
    unsupported = ResponsesRequest.unsupported.keys() - GuidedRequest.unsupported.keys()
    assert unsupported <= set(re.findall(r"`(\w+)`", DOCUMENT))


def test_every_item_status_and_event_is_documented() -> None:
    assert named("Items") == PREFIXES.keys()
    names = set(re.findall(r"`([\w.]+)`", DOCUMENT))
    assert set(get_args(Status)) - {"queued", "in_progress"} <= names
    for kind in GrowingItem.__subclasses__():
        assert {f"{kind.events}.delta", f"{kind.events}.done"} <= names
    assert f"({DEFAULT_RESPONSE_STORE_BYTES >> 20} MiB)" in DOCUMENT
