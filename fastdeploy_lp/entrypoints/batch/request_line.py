"""A line of a batch input file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.entrypoints.strict_json import DuplicateKeyError, load

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/pooling")
FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True)
class RequestLine:
    """A request; `custom_id` is the caller's identifier."""

    custom_id: str
    url: str
    body: dict[str, Any]


class BadLineError(ValueError):
    """A line that is not a valid request; `custom_id` is None if the line has none."""

    def __init__(self, custom_id: str | None, message: str) -> None:
        super().__init__(message)
        self.custom_id = custom_id


def read_line(line: bytes, number: int) -> RequestLine:
    """Parses the `number`-th line of a file; raises BadLineError naming the line and the field."""
    twice: DuplicateKeyError | None = None
    try:
        content = load(line)
    except DuplicateKeyError as error:
        twice, content = error, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(None, f"line {number}: no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadLineError(None, f"line {number}: must be a JSON object")
    custom_id = content.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLineError(None, f"line {number}: custom_id: must be a string that is not empty")
    problem = _problem(content) if twice is None else str(twice)
    if problem is not None:
        raise BadLineError(custom_id, f"line {number}: {problem}")
    return RequestLine(custom_id, content["url"], content["body"])


def _problem(content: dict[str, Any]) -> str | None:
    unknown = sorted(content.keys() - set(FIELDS))
    if unknown:
        return f"{unknown[0]}: is no field of a batch request; fields are {', '.join(FIELDS)}"
    if content.get("method", "POST") != "POST":
        return f"method: must be POST, not {content['method']!r}"
    if content.get("url") not in ENDPOINTS:
        return f"url: must be one of {', '.join(ENDPOINTS)}, not {content.get('url')!r}"
    body = content.get("body")
    if not isinstance(body, dict):
        return "body: must be a JSON object"
    return "body.stream: a batch has no streams; leave it out" if body.get("stream") else None
