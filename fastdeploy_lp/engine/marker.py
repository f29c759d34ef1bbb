"""Finds a marker in text that arrives in pieces."""

from __future__ import annotations


def cut_at(text: str, marker: str) -> tuple[str, bool, str]:
    """Splits a text at a marker: returns the text before it, True if it is there, and the text after it.

    Without the marker, the third part is the end of the text that may be the marker's beginning.
    """
    before, found, behind = text.partition(marker)
    if found:
        return before, True, behind
    kept = len(text) - beginning_at_end(text, marker)
    return text[:kept], False, text[kept:]


def beginning_at_end(text: str, marker: str) -> int:
    """Returns the number of characters at the end of the text that are the beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)
