"""Options for turning prompts into tokens; the same over HTTP and offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

WHOLE_CONTEXT = -1
LEFT, RIGHT = "left", "right"
SIDES = (LEFT, RIGHT)


class PromptOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options for turning a prompt into tokens.

    add_special_tokens: True for the special tokens that the tokenizer adds to a text; None for true for a prompt, and
        false for a conversation, whose template writes them. Token ids stay as they are.
    truncate_prompt_tokens: number of tokens to cut a longer prompt to, at least 1; -1 for as many as the context holds
        besides `max_tokens`. None refuses a prompt that does not fit.
    truncation_side: "left" cuts the first tokens off, "right" the last ones; None for "left", and "right" for a prompt
        that is pooled. Special tokens that the tokenizer adds are kept.
    max_tokens: output tokens that -1 leaves room for; None for one.

    Raises ValueError naming the field and the allowed values.
    """

    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, max_tokens: int | None = None) -> PromptOptions:
        """Returns the options of `tokenization_kwargs`; raises ValueError, also for an unknown name."""
        unknown = sorted((given or {}).keys() - set(NAMES))
        if unknown:
            raise ValueError(f"tokenization_kwargs.{unknown[0]}: is unknown; allowed are {', '.join(NAMES)}")
        return cls(**(given or {}), max_tokens=max_tokens)

    def __post_init__(self) -> None:
        if not isinstance(self.add_special_tokens, bool | None):
            raise ValueError(f"add_special_tokens: must be true or false, not {self.add_special_tokens!r}")
        most = self.truncate_prompt_tokens
        is_integer = isinstance(most, int) and not isinstance(most, bool)
        if most is not None and not (is_integer and (most == WHOLE_CONTEXT or most >= 1)):
            raise ValueError(
                f"truncate_prompt_tokens: must be at least 1, or -1 for what the context holds, not {most!r}"
            )
        if self.truncation_side not in (None, *SIDES):
            raise ValueError(f"truncation_side: {self.truncation_side!r} is none of {', '.join(SIDES)}")
        if self.truncation_side is not None and most is None:
            raise ValueError("truncation_side: only allowed together with truncate_prompt_tokens")


NAMES = tuple(name for name in PromptOptions.__struct_fields__ if name != "max_tokens")
PLAIN = PromptOptions()
