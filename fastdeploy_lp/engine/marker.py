"""A marker in text that comes piece by piece."""

from __future__ import annotations


def cut_at(text: str, marker: str) -> tuple[str, bool, str]:
    """What stands before the marker, whether it is there, and what stands behind it.

    If it is not there, the third part is the text's end that may yet turn out to be its beginning.
    """
    before, found, behind = text.partition(marker)
    if found:
        return before, True, behind
    kept = len(text) - beginning_at_end(text, marker)
    return text[:kept], False, text[kept:]


def beginning_at_end(text: str, marker: str) -> int:
    """How many characters at the end of the text are the beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)
