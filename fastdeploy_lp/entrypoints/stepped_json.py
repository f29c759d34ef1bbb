"""A JSON parser in small steps and within bounds, for a thread beside an event loop.

`json.loads` holds the interpreter's lock until it has read the whole text: a megabyte of numbers blocks every other
thread for tens of milliseconds. Here the interpreter may switch threads between any two values, and in lists after
runs of up to 1,024 plain values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.decoder import JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

Scan = Callable[[str, int], tuple[Any, int]]
Members = Callable[[list[tuple[str, Any]]], dict[str, Any]]
"""Returns an object with the members as written, duplicates included."""

# Runs of plain numbers, such as token ids, and literals, or of short texts without escapes; the library reads a run at
# once.
SPACE = r"[ \t\n\r]*"
NUMBER = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?"
PLAIN = rf"(?:{NUMBER}|null|true|false)"
TEXT = r'"[^"\\\x00-\x1f]{0,64}"'
RUNS = [re.compile(rf"{each}(?:{SPACE},{SPACE}{each}){{0,1023}}(?={SPACE}[,\]])") for each in (PLAIN, TEXT)]
SPACES = re.compile(SPACE)


class Bounds:
    """Limits on values, object members, containers (lists and objects) and nesting depth, counted during parsing."""

    def __init__(self, values: int, members: int, containers: int, depth: int) -> None:
        self._values = values
        self._members = members
        self._containers = containers
        self._depth = depth

    def entries(self, count: int) -> None:
        """Counts entries of a list."""
        self._values -= count
        if self._values < 0:
            raise TooMuchError("values")

    def member(self) -> None:
        """Counts a member of an object."""
        self._members -= 1
        if self._members < 0:
            raise TooMuchError("members")
        self.entries(1)

    def enter(self) -> None:
        """Counts the start of a list or an object."""
        self._depth -= 1
        self._containers -= 1
        if self._depth < 0:
            raise TooMuchError("depth")
        if self._containers < 0:
            raise TooMuchError("containers")

    def leave(self) -> None:
        """Counts the end of a list or an object."""
        self._depth += 1


class TooMuchError(Exception):
    """A text exceeds one of the `Bounds`; the argument is its name."""


def load(text: str | bytes, bounds: Bounds, members: Members) -> Any:
    """Returns the parsed text; raises TooMuchError, the exceptions of `members`, and as `json.loads` does."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _Decoder(bounds, members).decode(text)


class _Decoder(json.JSONDecoder):
    """The library's decoder with its Python scanner; also counts lists and objects."""

    def __init__(self, bounds: Bounds, members: Members) -> None:
        super().__init__(object_pairs_hook=members)
        self._bounds = bounds
        self.parse_array = self._array
        self.parse_object = self._object
        self.scan_once = py_make_scanner(self)

    def _object(self, start: tuple[str, int], strict: bool, scan_once: Scan, *hooks: Any) -> tuple[Any, int]:
        def member(text: str, index: int) -> tuple[Any, int]:
            self._bounds.member()
            return scan_once(text, index)

        self._bounds.enter()
        found: tuple[Any, int] = JSONObject(start, strict, member, *hooks)
        self._bounds.leave()
        return found

    def _array(self, start: tuple[str, int], scan_once: Scan) -> tuple[list[Any], int]:
        self._bounds.enter()
        text, end = start
        values: list[Any] = []
        end = _after_spaces(text, end)
        closed = text[end : end + 1] == "]"
        while not closed:
            end = _after_spaces(text, self._entries(text, end, scan_once, values))
            closed = text[end : end + 1] == "]"
            if not closed and text[end : end + 1] != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
            end += not closed
            end = _after_spaces(text, end)
        self._bounds.leave()
        return values, end + 1

    def _entries(self, text: str, end: int, scan_once: Scan, values: list[Any]) -> int:
        """Reads one entry of a list, or a run of them, and returns the index of its end."""
        run = next(filter(None, (each.match(text, end) for each in RUNS)), None)
        if run is not None:
            found = json.loads(f"[{run[0]}]")
            self._bounds.entries(len(found))
            values += found
            return run.end()
        self._bounds.entries(1)
        try:
            value, end = scan_once(text, end)
        except StopIteration as error:
            raise json.JSONDecodeError("Expecting value", text, error.value) from None
        values.append(value)
        return end


def _after_spaces(text: str, index: int) -> int:
    found = SPACES.match(text, index)
    return index if found is None else found.end()
