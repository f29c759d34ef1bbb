"""Forms of a prompt with names in vLLM; this server reads the same dicts."""

from __future__ import annotations

from typing import TypeAlias, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt
