"""Makes a real server say what a test wants to hear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.openai.logits_processor import LogitsProcessor
from support.chat import encode

if TYPE_CHECKING:
    from paddle import Tensor

END = 2

# A model of random weights may begin to reason, which puts its form off.
AT_ONCE: dict[str, Any] = {"guided_when": {"after_tokens": 0}}


class ForcesTokens(LogitsProcessor):
    """Rows that pass `forced_tokens` get these tokens, one a step, and then the end of sequence."""

    def __init__(self, fd_config: FDConfig) -> None:
        self._tokens: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        args, steps = share_inputs["logits_processors_args"], share_inputs["step_idx"]
        self._tokens = [_next(args[slot].forced_tokens, int(steps[slot, 0])) for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._tokens):
            if token is not None:
                logits[row] = -1000.0
                logits[row, token] = 0.0
        return logits


def _next(forced: list[int] | None, step: int) -> int | None:
    if forced is None:
        return None
    return forced[step] if step < len(forced) else END


def says(text: str) -> dict[str, Any]:
    """Fields of a request that is answered with this text."""
    return {"logits_processors_args": {"forced_tokens": encode(text)}}
