"""Processors of the stages after the filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.logits_processor.vllm_v1 import AdapterLogitsProcessor
from fastdeploy_lp.model_executor.ops.row_ops import Draws
from fastdeploy_lp.model_executor.ops.row_selection import row_ops


def plain_draws(uniforms: NDArray[np.float32]) -> Draws:
    """A draw at temperature 1 without filters."""
    ones, zeros = np.ones_like(uniforms), np.zeros_like(uniforms)
    return Draws(ones, zeros, zeros.astype(np.int64), ones, uniforms)


class Rows(LogitsProcessor):
    """Knows the arguments of each of its rows."""

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.args: list[Any] = []
        self.slots: list[int] = []
        self.outputs: list[list[int]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.slots = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        self.args = [share_inputs["logits_processors_args"][slot] for slot in self.slots]
        self.outputs = [share_inputs["output_token_ids"][slot] for slot in self.slots]
        assert (share_inputs["temperature_cpu"][self.slots] > 0).all()


class Without(BaseModel):
    without: list[int] | None = None


class Leaves(Rows):
    """Rules out the tokens `without` of the final distribution; emits the number of tokens that it saw."""

    stage = "filtered"
    Params = Without

    def apply(self, logits: Tensor) -> Tensor:
        assert logits.shape[0] == len(self.slots)
        for row, (slot, args) in enumerate(zip(self.slots, self.args, strict=True)):
            self.actions.emit(slot, int(np.isfinite(logits[row].numpy()).sum()))
            for token in args.without:
                logits[row, token] = float("-inf")
        return logits


class Also(Leaves): ...


class Revived(BaseModel):
    revive: bool | None = None


class Revives(Rows):
    """Makes every token equally likely, also the ones that were ruled out."""

    stage = "filtered"
    Params = Revived

    def apply(self, logits: Tensor) -> Tensor:
        return logits * 0.0 if not self.args else logits.zero_()


class Spoils(Rows):
    """Leaves NaN."""

    stage = "filtered"
    Params = type("SpoilParams", (BaseModel,), {"__annotations__": {"spoil": "bool | None"}, "spoil": None})

    def apply(self, logits: Tensor) -> Tensor:
        logits[:] = float("nan")
        return logits


class Drawn(BaseModel):
    draws: bool | None = None
    fails_at: int | None = None
    chooses: int | None = None
    banned: int | None = None


class Draws1(Rows):
    """Draws as the sampler does; with `chooses`, chooses this token. Fails when a request has `fails_at` tokens."""

    stage = "draw"
    Params = Drawn

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor:
        assert logits.shape[0] == len(self.slots) == len(uniforms)
        for args, output in zip(self.args, self.outputs, strict=True):
            if args.fails_at == len(output):
                raise RuntimeError("fails as asked")
        tokens = row_ops().draw(logits, plain_draws(uniforms), guard=False)
        # Changes nothing: what a token may be is not decided by this copy.
        logits.zero_()
        for row, args in enumerate(self.args):
            if args.chooses is not None and len(self.outputs[row]) == 2:
                tokens[row] = args.chooses
        return tokens


class Draws2(Draws1): ...


class LastOf(LogitsProcessor):
    """Always draws the last token that is left, for every request."""

    stage = "draw"

    def __init__(self, fd_config: FDConfig) -> None:
        return

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        return

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32]) -> NDArray[np.int64]:
        host = logits.numpy()
        return host.shape[1] - 1 - np.isfinite(host)[:, ::-1].argmax(axis=1)


class VllmLeaves(AdapterLogitsProcessor):
    """Rules out `vllm_without` after the filters."""

    stage = "filtered"

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        token = (params.extra_args or {}).get("vllm_without")
        if token is None:
            return None

        def process(output_ids: list[int], row: Tensor) -> Tensor:
            row[token] = float("-inf")
            return row

        return process
