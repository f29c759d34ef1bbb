"""Phases: the part of an output in which a logits processor or a form applies, found in the output's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_MARKER = 256
"""Bytes of a marker."""

MAX_AFTER_TOKENS = 1 << 24

KEYS = ("after", "before", "after_tokens", "in")
PARTS = ("reasoning", "answer", "tool_call")


class Section(msgspec.Struct, frozen=True, array_like=True):
    """A part of an output, up to a marker.

    inside: True if the phase applies here. until: the marker that ends the section, "" for none. then: index of the
    section after it. opening: True if only the beginning of the output, after whitespace, counts as the marker; with
    any other beginning, the output belongs to the section `otherwise` from its first byte on. may_end: True if an
    output whose form waits in this section may end here.
    """

    inside: bool
    until: str = ""
    then: int = 0
    opening: bool = False
    otherwise: int = 0
    may_end: bool = False


class Phase(msgspec.Struct, frozen=True, array_like=True):
    """Sections of an output, of which the first begins it. The phase applies where a section does, and not before the
    output has `after_tokens` tokens."""

    sections: tuple[Section, ...]
    after_tokens: int = 0

    @property
    def is_whole(self) -> bool:
        """True if the phase applies to every token."""
        return self.sections == (Section(True),) and not self.after_tokens

    @property
    def opening(self) -> str | None:
        """The marker with which an output may begin that otherwise has the form from its first byte on, or None."""
        first = self.sections[0]
        return first.until if first.opening and self.sections[first.otherwise].inside else None

    @property
    def closing(self) -> str:
        """The marker that ends a section of the phase, "" for none."""
        return next((each.until for each in self.sections if each.inside), "")


class PhaseError(ValueError):
    """A request's `when` is invalid; `path` leads to its wrong part, `reason` says what is allowed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


Parts = Mapping[str, tuple[Section, ...]]
"""Sections by the name of a part, one of PARTS, for the parts that this server's parsers know."""

NO_PARTS: Parts = {}


def phase_of(when: Any, path: str, parts: Parts, *, handles_text: bool = True) -> Phase:
    """Returns the phase that `when` describes; `path` is its place in the request.

    handles_text: False for a server without a tokenizer, which cannot find markers. Raises PhaseError.
    """
    if not isinstance(when, Mapping) or not when:
        raise PhaseError(path, f"must be an object with at least one of {', '.join(KEYS)}")
    for key in when:
        if key not in KEYS:
            raise PhaseError(f"{path}.{key}", f"is unknown here; allowed are {', '.join(KEYS)}")
    if "in" in when:
        return _part(when, f"{path}.in", parts)
    after, before = (_marker(when, key, path) for key in ("after", "before"))
    tokens = when.get("after_tokens", 0)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= MAX_AFTER_TOKENS:
        raise PhaseError(f"{path}.after_tokens", f"must be an integer from 0 to {MAX_AFTER_TOKENS}, not {tokens!r}")
    if (after or before) and not handles_text:
        raise PhaseError(path, "this server has no tokenizer, so that it cannot find text; allowed is after_tokens")
    return Phase(between(after, before), tokens)


def between(after: str, before: str) -> tuple[Section, ...]:
    """Returns the sections of a phase after one marker and before another, either of which may be ""."""
    inside = [Section(True, before, then=1), Section(False, may_end=True)] if before else [Section(True)]
    if not after:
        return tuple(inside)
    moved = [msgspec.structs.replace(each, then=each.then + 1) if each.until else each for each in inside]
    return (Section(False, after, then=1), *moved)


class PhasePosition:
    """Follows an output by the bytes of its tokens, however it is tokenized."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._index = 0
        # The bytes since the section began that may be the beginning of its marker.
        self._pending = b""
        self.num_tokens = 0

    @property
    def section(self) -> Section:
        """Section of the next token."""
        return self._phase.sections[self._index]

    @property
    def inside(self) -> bool:
        """True if the phase applies to the next token."""
        return self.section.inside and self.num_tokens >= self._phase.after_tokens

    @property
    def pending(self) -> bytes:
        """The end of the section's bytes, of which the marker's beginning is a part."""
        return self._pending

    def push(self, token: bytes) -> None:
        """Takes the bytes of the output's next token."""
        self.num_tokens += 1
        rest: bytes | None = token
        while rest is not None:
            rest = self._pushed(rest)

    def go_on(self) -> None:
        """Begins the section after the current one."""
        self._index, self._pending = self.section.then, b""

    def _pushed(self, piece: bytes) -> bytes | None:
        """Takes bytes; returns the rest after the end of the section, None if the section has not ended."""
        section = self.section
        if not section.until:
            return None
        marker, text = section.until.encode(), self._pending + piece
        if section.opening:
            return self._opened(section, marker, text)
        before, found, rest = text.partition(marker)
        if not found:
            self._pending = before[max(0, len(before) - len(marker) + 1) :]
            return None
        self.go_on()
        return rest

    def _opened(self, section: Section, marker: bytes, text: bytes) -> bytes | None:
        # An incomplete character is no whitespace.
        seen = text.decode(errors="replace").lstrip().encode()
        if len(seen) < len(marker) and marker.startswith(seen):
            self._pending = text
            return None
        if seen.startswith(marker):
            self.go_on()
            return text[text.index(marker) + len(marker) :]
        self._index, self._pending = section.otherwise, b""
        return text


def _part(when: Mapping[str, Any], path: str, parts: Parts) -> Phase:
    name = when["in"]
    if len(when) > 1:
        other = next(key for key in when if key != "in")
        raise PhaseError(path, f"cannot stand beside {other}")
    if name not in PARTS:
        raise PhaseError(path, f"{name!r} is none of {', '.join(PARTS)}")
    if name not in parts:
        option = "--enable-auto-tool-choice" if name == "tool_call" else "--reasoning-parser"
        known = ", ".join(parts) or "none"
        raise PhaseError(path, f"this server cannot find the {name} of an output without {option}; it finds: {known}")
    return Phase(parts[name])


def _marker(when: Mapping[str, Any], key: str, path: str) -> str:
    if key not in when:
        return ""
    text = when[key]
    if not isinstance(text, str) or not text:
        raise PhaseError(f"{path}.{key}", "must be a text that is not empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise PhaseError(f"{path}.{key}", f"no valid Unicode: {error.reason}") from None
    if size > MAX_MARKER:
        raise PhaseError(f"{path}.{key}", f"has {size} bytes; at most {MAX_MARKER} are allowed")
    return text
