"""A logits processor with an argument of every kind that a form can have."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.builtin.logit_bias import TokenId
from fastdeploy_lp.logits_processor.token_arguments import Phrase
from fastdeploy_lp.openai.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor


class Inner(BaseModel):
    """An object within."""

    model_config = ConfigDict(extra="forbid")

    depth: Annotated[int, Field(ge=0, le=3)] = 0
    label: str = ""


class EverythingParams(BaseModel):
    """`ratio`: a number that is needed; `pause`: seconds that each step takes; and one argument of each other kind."""

    model_config = ConfigDict(extra="forbid")

    ratio: Annotated[float, Field(gt=0, le=1, description="what share of it")]
    pause: Annotated[float, Field(ge=0, le=1)] = 0.0
    steps: int | None = None
    mode: Literal["soft", "hard"] = "soft"
    eager: bool = False
    title: str | None = None
    words: list[str] = []
    marked: list[TokenId] = []
    weights: dict[str, float] = {}
    span: tuple[int, float] | None = None
    phrase: Phrase | None = None
    inner: Inner | None = None
    anything: Any = None


class TakesEverything(LogitsProcessor):
    """Takes `ratio` and much else, `pause`s, and leaves the logits as they are."""

    Params = EverythingParams
    only_with_args = True
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._pause = 0.0

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        pauses = [share_inputs["logits_processors_args"][slot].pause or 0.0 for slot in active]
        self._pause = max(pauses, default=0.0)

    def apply(self, logits: Tensor) -> Tensor:
        # The time that a costly processor takes.
        time.sleep(self._pause)
        return logits


class TakesAnything(LogitsProcessor):
    """Says nothing of its arguments but that it takes any, and does nothing."""

    accepts_any_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        pass

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        pass

    def apply(self, logits: Tensor) -> Tensor:
        return logits
