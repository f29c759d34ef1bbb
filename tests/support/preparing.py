"""Processors with a `prepare` of each kind."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, PrepareRequest

if TYPE_CHECKING:
    from paddle import Tensor


class Looked(BaseModel):
    """`how`: what `prepare` does, after `seconds`. `word`: the key of what it looks up."""

    how: str = "finds"
    seconds: float = 0.0
    word: str = "a"


class LooksUp(LogitsProcessor):
    """Allows only the token that `prepare` finds for a request."""

    Params = Looked
    only_with_args = True
    prepare_timeout = 1.5

    @classmethod
    async def prepare(cls, request: PrepareRequest) -> Any:
        """Returns the length of the word and of the prompt, unless it is asked for something else."""
        how, seconds = request.args.get("how", "finds"), request.args.get("seconds", 0.0)
        await asyncio.sleep(seconds)
        if how == "hangs":
            await asyncio.Event().wait()
        if how == "blocks":
            time.sleep(60)
        if how == "raises":
            raise LookupError("no such word")
        if how == "large":
            return "x" * 200_000
        if how == "unsendable":
            return object()
        if how == "modules":
            return sorted(name for name in sys.modules if name.startswith("support."))
        return {"token": 300 + len(request.args.get("word", "a")), "tokens": len(request.prompt_token_ids)}

    def __init__(self, fd_config: FDConfig) -> None:
        self._tokens: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads the values of this step's rows."""
        active, args = np.flatnonzero(~share_inputs["stop_flags"][:, 0]), share_inputs["logits_processors_args"]
        self._tokens = [args[slot].prepared["token"] if args[slot].prepared else None for slot in active.tolist()]

    def apply(self, logits: Tensor) -> Tensor:
        """Sets the tokens."""
        for row, token in enumerate(self._tokens):
            if token is not None:
                logits[row, token] = 1e6
        return logits


class Skips(LooksUp):
    """Leaves requests alone whose value is late."""

    prepare_late: ClassVar[str] = "skip"
    prepare_timeout = 0.3


class Holds(LooksUp):
    """Lets requests wait for their value."""

    prepare_late: ClassVar[str] = "hold"
    prepare_timeout = 0.1
