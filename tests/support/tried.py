"""Processors with an instance a request that fail for some arguments, at one time or another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    import paddle
    import torch

RAISED: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
    "cancelled": lambda: asyncio.CancelledError(),
    "base": lambda: BaseException("of its own"),
    "stop": lambda: StopIteration(),
    "generator": lambda: GeneratorExit(),
}


class TokenParams(BaseModel):
    token_id: int


class AddsAtCall:
    """A plugin that finds out at its first call that there is no such token."""

    def __init__(self, tokenizer: Any, parameters: TokenParams) -> None:
        self._token = parameters.token_id

    def __call__(self, token_ids: list[int], logits: paddle.Tensor) -> paddle.Tensor:
        logits[self._token] += 1000.0
        return logits


class TokenizerSecond(AddsAtCall):
    """Takes its two arguments the other way round; refuses a tokenizer whose last token is not 2."""

    def __init__(self, parameters: TokenParams, tokenizer: Any) -> None:
        super().__init__(tokenizer, parameters)
        if tokenizer is not None and tokenizer.eos_token_id != 2:
            raise ValueError("this is another tokenizer")


PLUGIN = {"logits_processor_class": AddsAtCall, "parameters_model": TokenParams}
TOKENIZER_SECOND = {"logits_processor_class": TokenizerSecond, "parameters_model": TokenParams}


class Adds:
    """Called as the processors of transformers; finds out at its first call that there is no such token."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed = scores.clone()
        changed[0, self._place] += 1000.0
        return changed


class Raises:
    """Raises when it is built, when it is first called, or at its second token."""

    def __init__(self, kind: str, when: str) -> None:
        self._kind, self._when = kind, when
        if when == "build":
            raise RAISED[kind]()

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if self._when == ("second" if output_ids else "first"):
            raise RAISED[self._kind]()
        return logits
