"""Adds a bias to chosen tokens' logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo

from fastdeploy_lp.logits_processor.base import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


def _in_vocabulary(token: int, info: ValidationInfo) -> int:
    vocab_size = info.context["vocab_size"] if info.context else None
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        raise ValueError(f"token id out of range, the vocabulary has {vocab_size} tokens")
    return token


def _no_nan(bias: float) -> float:
    if math.isnan(bias) or bias == math.inf:
        raise ValueError(f"a bias of {bias} is not allowed; give a number, or -inf to ban the token")
    return bias


TokenId = Annotated[int, AfterValidator(_in_vocabulary)]
Bias = Annotated[float, AfterValidator(_no_nan)]


class LogitBiasParams(BaseModel):
    """`logit_bias` maps token ids to the bias added to their logits; -inf bans a token."""

    model_config = ConfigDict(extra="forbid")

    logit_bias: dict[TokenId, Bias] | None = None


class _Entries(NamedTuple):
    rows: Tensor
    tokens: Tensor
    values: Tensor


class LogitBiasLogitsProcessor(LogitsProcessor):
    """`{"logit_bias": {token_id: bias}}` adds each bias to its token's logit; requests without it are untouched.

    One indexed add of all rows' entries a step, in place. The index tensors are rebuilt only when the active slots or
    their biases change.
    """

    Params = LogitBiasParams

    def __init__(self, fd_config: FDConfig) -> None:
        self._dtype = fd_config.model_config.dtype
        self._biases: list[dict[int, float] | None] = []
        self._entries: _Entries | None = None

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Collect the active rows' biases; the arguments of a slot never change while its request runs."""
        args = share_inputs["logits_processors_args"]
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        biases = [args[slot].get("logit_bias") for slot in active.tolist()]
        if not _same_objects(biases, self._biases):
            self._biases = biases
            self._entries = self._build(biases)

    def apply(self, logits: Tensor) -> Tensor:
        """Add in place; no tensor is touched when no active request has a bias."""
        if self._entries is None:
            return logits
        rows, tokens, values = self._entries
        return logits.index_put_((rows, tokens), values, accumulate=True)

    def _build(self, biases: list[dict[int, float] | None]) -> _Entries | None:
        rows = np.repeat(np.arange(len(biases)), [len(bias or ()) for bias in biases])
        if not rows.size:
            return None
        # Here, not above: the API process reads Params from this module and has no use for Paddle.
        import paddle

        tokens = np.fromiter((token for bias in biases if bias for token in bias), np.int64, rows.size)
        values = np.fromiter((value for bias in biases if bias for value in bias.values()), np.float64, rows.size)
        return _Entries(
            paddle.to_tensor(rows.astype(np.int64)),
            paddle.to_tensor(tokens),
            paddle.to_tensor(values, dtype=self._dtype),
        )


def _same_objects(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))
