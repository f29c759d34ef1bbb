"""The option `speculative_config`: draft tokens that a step verifies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fastdeploy_lp.config.option_values import json_object

NGRAM, GRAMMAR, AUTO = "ngram", "grammar", "auto"
METHODS = (AUTO, NGRAM, GRAMMAR)
MAX_DRAFT = 64


@dataclass(frozen=True)
class Speculation:
    """Sources of draft tokens, and the number that a step verifies for one sequence.

    method: "ngram" repeats the text that followed the last tokens before, in the prompt, the output or the request's
    prediction; "grammar" takes the tokens that a request's grammar forces; "auto" does both; "module:Class" names a
    package's drafter, which is built with the configuration. num_speculative_tokens: at most this many for a sequence
    and step. prompt_lookup_min, prompt_lookup_max: tokens that must match, and tokens beyond which a longer match says
    no more. adaptive: draft only what is likely to pay off on this machine; False for all that is found.
    """

    method: str = AUTO
    num_speculative_tokens: int = 8
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 8
    adaptive: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS and not self.names_class:
            names = ", ".join(METHODS)
            raise ValueError(f"method: {self.method!r} is not allowed; it must be one of {names}, or module:Class")
        for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DRAFT:
                raise ValueError(f"{name}: {value!r} is not allowed; it must be an integer from 1 to {MAX_DRAFT}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(f"prompt_lookup_min: must be at most prompt_lookup_max, which is {self.prompt_lookup_max}")
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive: {self.adaptive!r} is not allowed; it must be true or false")

    @property
    def names_class(self) -> bool:
        """True if `method` names a class of a package."""
        return isinstance(self.method, str) and ":" in self.method

    @property
    def looks_up(self) -> bool:
        """True if earlier text is a source of drafts."""
        return self.method in (AUTO, NGRAM)

    @property
    def follows_grammars(self) -> bool:
        """True if grammars are a source of drafts."""
        return self.method in (AUTO, GRAMMAR)


NAMES = tuple(field.name for field in fields(Speculation))


def speculation_of(given: str | dict[str, Any] | None) -> Speculation | None:
    """Returns the settings of a JSON object, or of its text; raises ValueError naming what is wrong in it."""
    if given is None:
        return None
    found = json_object(given, '{"method": "ngram"}')
    for name in found:
        if name not in NAMES:
            raise ValueError(f"{name} is not allowed; allowed are {', '.join(NAMES)}")
    return Speculation(**found)


def require_speculation(name: str, value: str | dict[str, Any]) -> None:
    """Raises ValueError naming the option unless `speculation_of` accepts its value."""
    try:
        speculation_of(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
