"""Files of a batch: lines of the input, and the output, which a later run continues after an interruption."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fastdeploy_lp.entrypoints.openai.body.shape import DuplicateKeyError, load_strict

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
        content = load_strict(line)
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


# Beginning of every line; a file with another beginning is not a batch output and is not modified.
BEGINNING = b'{"id": "batch_req_'


class OutputFile:
    """A file to which complete lines are appended; `with OutputFile(path) as output:` closes it.

    An incomplete last line is removed, and its request is answered again. Raises ValueError for a file with other
    content or that another run writes to, and OSError if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answered: set[str] = set()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock()
            self._take_up()
        except BaseException:
            os.close(self._file)
            raise

    def has(self, custom_id: str | None, message: str = "") -> bool:
        """True if the request has a line; without a `custom_id`, its error message identifies it."""
        return _key(custom_id, message) in self._answered

    def write(self, line: dict[str, Any]) -> None:
        """Appends one line, unbuffered."""
        content = json.dumps(line, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
        while content:
            content = content[os.write(self._file, content) :]
        self._note(line)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"output_file: {self._path} is being written by another run") from None

    def _take_up(self) -> None:
        whole = 0
        with open(os.dup(self._file), "rb") as lines:
            for number, line in enumerate(lines, 1):
                if self._take_line(line):
                    whole += len(line)
                elif line.endswith(b"\n") or not (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
                    reason = f"line {number} is no batch output; give another file"
                    raise ValueError(f"output_file: {self._path}: {reason}")
                if not line.endswith(b"\n"):
                    break  # the last line; the code below completes or removes it
        os.ftruncate(self._file, whole)
        os.lseek(self._file, 0, os.SEEK_END)
        if whole and os.pread(self._file, 1, whole - 1) != b"\n":
            os.write(self._file, b"\n")

    def _take_line(self, line: bytes) -> bool:
        try:
            content = json.loads(line)
        except ValueError:
            return False
        if not isinstance(content, dict) or not line.startswith(BEGINNING):
            return False
        self._note(content)
        return True

    def _note(self, line: dict[str, Any]) -> None:
        self._answered.add(_key(line.get("custom_id"), (line.get("error") or {}).get("message", "")))


def _key(custom_id: str | None, message: str) -> str:
    return f"id {custom_id}" if custom_id is not None else f"error {message}"
