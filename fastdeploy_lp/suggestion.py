"""The name that a misspelled one probably means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Comparing takes time with each character, and clients choose their words.
MIN_CHARACTERS, MAX_CHARACTERS = 3, 40


def _similar(word: str, names: Iterable[str]) -> str | None:
    known = list(names)
    if not MIN_CHARACTERS <= len(word) <= MAX_CHARACTERS:
        return None
    # In any case of letters; `LogitBias` is less like `LogitBiasLogitsProcessor` than difflib asks for.
    begun = [name for name in known if name.lower().startswith(word.lower())]
    return next(iter([*begun, *get_close_matches(word, known, n=1)]), None)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns `; did you mean NAME?` with a name that begins with the word or is like it, "" if there is none."""
    name = _similar(word, names)
    return "" if name is None else f"; did you mean {name}?"
