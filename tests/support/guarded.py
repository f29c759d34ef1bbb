"""A server with everything on that stands before the routes, and its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.server import ServerProcess, wait_until

API_KEYS = ("first-key", "second-key")
AUTH = {"Authorization": f"Bearer {API_KEYS[0]}"}
MAX_BODY_SIZE = 20_000
MODEL_NAME = "lab/tiny"
ORIGIN = "https://pages.example"
ROOT_PATH = "/proxied"
LINE_SECONDS = 10.0


def guarded_server_process(checkpoint: Path) -> ServerProcess:
    """Keys, an origin, a small bound on bodies, a root path, and a log in JSON."""
    options = ["--api-key", API_KEYS[0], "--api-key", API_KEYS[1], "--max-body-size", str(MAX_BODY_SIZE)]
    options += ["--allowed-origins", ORIGIN, "--allow-credentials", "--root-path", ROOT_PATH]
    options += ["--log-format", "json", "--log-level", "debug", "--log-requests", "--served-model-name", MODEL_NAME]
    options += ["--logits-processors", "LogitBiasLogitsProcessor"]
    return ServerProcess(*options, model=str(checkpoint), own_metrics_port=False)


def log_events(server: ServerProcess) -> list[dict[str, Any]]:
    """What a server that logs JSON has told so far, without the banner and a line that is being written."""
    complete, _, _ = server.log.rpartition("\n")
    return [json.loads(line) for line in complete.splitlines() if line.startswith("{")]


def request_lines(server: ServerProcess, request_id: str, count: int = 1) -> list[dict[str, Any]]:
    """The lines of the requests of an id, which may come a moment after the answers."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        lines = [event for event in log_events(server) if event["message"] == "request"]
        found[:] = [line for line in lines if line["request_id"] == request_id]
        return len(found) >= count

    wait_until(are_there, LINE_SECONDS, lambda: server.log)
    return found


def request_line(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """The only line of an id."""
    (line,) = request_lines(server, request_id)
    return line
