"""Logits processors that tests load by `support.processors:ClassName`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.openai.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor

FORCED_TOKEN = 345


class YourLogitsProcessor(LogitsProcessor):
    """The skeleton of FastDeploy's document with a body: forces FORCED_TOKEN where it is enabled."""

    def __init__(self, fd_config: FDConfig) -> None:
        self.enabled: list[bool | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        stop_flags = share_inputs["stop_flags"]
        logits_processors_args = share_inputs["logits_processors_args"]
        logits_processors_args = [a for a, f in zip(logits_processors_args, stop_flags, strict=True) if not f]
        self.enabled = [a.enable_your_logits_processor for a in logits_processors_args]

    def apply(self, logits: Tensor) -> Tensor:
        for i, e in enumerate(self.enabled):
            if e:
                logits[i] = -100.0
                logits[i, FORCED_TOKEN] = 0.0
        return logits


class _OneToken(LogitsProcessor):
    """Changes one token's logit in rows that pass `order_token`."""

    def __init__(self, fd_config: FDConfig) -> None:
        self._tokens: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._tokens = [share_inputs["logits_processors_args"][slot].order_token for slot in active]


class SetsToFive(_OneToken):
    """Sets the token's logit to 5."""

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._tokens):
            if token is not None:
                logits[row, token] = 5.0
        return logits


class Doubles(_OneToken):
    """Doubles the token's logit."""

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._tokens):
            if token is not None:
                logits[row, token] = logits[row, token] * 2
        return logits


class NoLogitsProcessor:
    """A class that is none."""


not_a_class = 5


class Sets(LogitsProcessor):
    """Sets all logits of rows that pass `value`, or those of `tokens`."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._args = [share_inputs["logits_processors_args"][slot] for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        # Here, so that API processes of tests start without it.
        import paddle

        for row, args in enumerate(self._args):
            if args.value is not None and args.tokens is not None:
                logits[row, args.tokens] = paddle.full([len(args.tokens)], args.value)
            elif args.value is not None:
                logits[row] = args.value
        return logits
