"""docs/messages.md against the code: its programs are run as they are printed, but for the port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import get_args

from support.server import REPOSITORY, ServerProcess, server_environment

from fastdeploy_lp.entrypoints.openai.protocol.anthropic.answer import StopReason
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.conversation import BLOCK_TYPES
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import SERVER_ERRORS, TYPES
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.events import MessageEvent
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest

DOCUMENT = (REPOSITORY / "docs" / "messages.md").read_text()
PRINTED_URL = "http://127.0.0.1:8180"
PROGRAM_SECONDS = 120.0


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found.group(1)


def first_column(text: str) -> set[str]:
    cells = re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def block(language: str, text: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    (found,) = [each for each in blocks if text in each]
    return str(found)


def printed_by(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=server_environment(), timeout=PROGRAM_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_block_of_code_is_left_out_of_these_tests() -> None:
    # The program with Anthropic's package is run by tests/clients/test_frameworks.py.
    assert DOCUMENT.count("```") == 2 * 3
    assert "messages.stream(" in block("python", "import anthropic")


def test_the_curl_line_gets_a_message(server: ServerProcess) -> None:
    command = block("bash", "curl").replace(PRINTED_URL, server.url)
    message = json.loads(printed_by(["bash", "-ec", command]))
    assert message["content"][0]["text"]
    assert message["stop_reason"] in get_args(StopReason)


def test_the_program_counts_tokens(server: ServerProcess) -> None:
    program = block("python", "count_tokens").replace(PRINTED_URL, server.url)
    assert int(printed_by([sys.executable, "-c", program])) > 5


def test_every_field_is_documented_and_no_other() -> None:
    fields = section("Fields")
    assert first_column(fields) == MessagesRequest.model_fields.keys() - MessagesRequest.unsupported.keys()
    counted = fields.partition("takes the fields of the prompt:")[2].partition("It returns")[0]
    assert set(re.findall(r"`(\w+)`", counted)) == set(CountTokensRequest.model_fields)
    refused = fields.partition("Refused by name:")[2].partition("\n\n")[0]
    assert MessagesRequest.unsupported.keys() - GuidedRequest.unsupported.keys() <= set(re.findall(r"`(\w+)`", refused))


def test_every_block_event_reason_and_error_is_documented() -> None:
    assert first_column(section("Blocks")) == {kind for kinds in BLOCK_TYPES.values() for kind in kinds}
    assert first_column(section("Answers")) == set(get_args(StopReason))
    events = {event.model_fields["type"].default for event in get_args(MessageEvent)}
    assert events <= set(re.findall(r"`(\w+)`", section("Events")))
    rows = dict(re.findall(r"^\| (\d[\d, ]*) \| `(\w+)` \|", section("Errors"), re.MULTILINE))
    told = {int(status): kind for statuses, kind in rows.items() for status in statuses.split(",")}
    assert TYPES.items() <= told.items()
    others = {status: kind for status, kind in told.items() if status not in TYPES}
    assert all((kind == "api_error") == (status >= SERVER_ERRORS) for status, kind in others.items())
