"""Adds a bias to chosen tokens' logits."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
)

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.token_arguments import TOKEN_FORMAT, VOCAB_SIZE, TokenId
from fastdeploy_lp.request.limits import MAX_LOGIT_BIAS

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.row_ops import RowEdits

Int64s = NDArray[np.int64]


def _can_be_added(bias: float) -> float:
    if not (abs(bias) <= MAX_BIAS or bias == -math.inf):
        raise ValueError(f"a bias of {bias} is not allowed; give one from -1e9 to 1e9, or -inf to ban the token")
    return bias


def _few_enough(bias: Any) -> Any:
    """Checks size and keys before each entry is validated."""
    if not isinstance(bias, Mapping):
        return bias
    if len(bias) > MAX_LOGIT_BIAS:
        raise ValueError(f"at most {MAX_LOGIT_BIAS} tokens are allowed, not {len(bias)}")
    # JSON keys are always strings; a program may pass both kinds.
    twice = next((token for token in bias if isinstance(token, int) and str(token) in bias), None)
    if twice is not None:
        raise ValueError(f"token {twice} is given twice, as a number and as a string")
    return bias


def _leaves_one(bias: dict[int, float], info: ValidationInfo) -> dict[int, float]:
    vocab_size = (info.context or {}).get(VOCAB_SIZE)
    if vocab_size is not None and sum(value == -math.inf for value in bias.values()) >= vocab_size:
        raise ValueError("bans every token of the vocabulary")
    return bias


# Far above any logit, and far below the limit of float32.
MAX_BIAS = 1e9
Bias = Annotated[float, Field(strict=True), AfterValidator(_can_be_added)]
# Pydantic cannot derive a schema from integer keys, nor from a validator that runs before the others.
SCHEMA_OF_BIASES: dict[str, JsonValue] = {
    "maxProperties": MAX_LOGIT_BIAS,
    "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$", **TOKEN_FORMAT},
}


class LogitBiasParams(BaseModel):
    """`logit_bias` maps token ids to the bias added to their logits; -inf bans a token."""

    model_config = ConfigDict(extra="forbid")

    logit_bias: (
        Annotated[
            dict[TokenId, Bias],
            Field(json_schema_extra=SCHEMA_OF_BIASES),
            BeforeValidator(_few_enough),
            AfterValidator(_leaves_one),
        ]
        | None
    ) = None


class LogitBiasLogitsProcessor(LogitsProcessor):
    """`{"logit_bias": {token_id: bias}}` adds each bias to its token's logit; requests without it are untouched.

    One sparse add in place for all rows of a step. A step without changes reuses the last operands; otherwise only the
    changed slots are read again.
    """

    Params = LogitBiasParams
    only_with_args = True
    keeps_rows_valid = True
    steps_at_rest = sys.maxsize

    def __init__(self, fd_config: FDConfig) -> None:  # noqa: ARG002 - contract
        # Imported here: the API process reads Params from this module and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.row_selection import row_ops

        self._edits: RowEdits = row_ops()
        self._stop_flags = self._versions = b""
        # The entries of all slots, ascending by slot, and the number of entries of each slot.
        self._counts = np.zeros(0, np.int64)
        self._tokens = np.zeros(0, np.int64)
        self._biases = np.zeros(0, np.float32)
        # Row, token and bias of each entry of the step's batch.
        self._batch: tuple[Int64s, Int64s, NDArray[np.float32]] | None = None

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Follows the slots; reads a mapping without `args_versions`, which the chain adds, in full every time."""
        stop_flags, versions = share_inputs["stop_flags"], share_inputs.get("args_versions")
        stop_flags_now = stop_flags.tobytes()
        versions_now = b"" if versions is None else versions.tobytes()
        if versions_now and versions_now == self._versions and stop_flags_now == self._stop_flags:
            return
        args = share_inputs["logits_processors_args"]
        if versions is not None and len(versions_now) == len(self._versions):
            self._read(np.flatnonzero(versions != np.frombuffer(self._versions, versions.dtype)).tolist(), args)
        else:
            self._counts, self._tokens, self._biases = np.zeros(len(args), np.int64), self._tokens[:0], self._biases[:0]
            self._read(range(len(args)), args)
        self._batch = self._place(~stop_flags[:, 0])
        self._stop_flags, self._versions = stop_flags_now, versions_now

    def apply(self, logits: Tensor) -> Tensor:
        """Adds in place; touches no tensor if no active request has a bias."""
        if self._batch is not None:
            rows, tokens, biases = self._batch
            self._edits.add(logits, rows, tokens, biases)
        return logits

    def _read(self, slots: Sequence[int], args: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the entries of these slots, given in ascending order."""
        counts, ends = self._counts.copy(), np.cumsum(self._counts)
        tokens, biases, done = [], [], 0
        for slot in slots:
            bias = args[slot].get("logit_bias") or {}
            kept = slice(done, ends[slot] - counts[slot])
            tokens += [self._tokens[kept], np.fromiter(bias, np.int64, len(bias))]
            biases += [self._biases[kept], np.fromiter(bias.values(), np.float32, len(bias))]
            done, counts[slot] = ends[slot], len(bias)
        self._tokens = np.concatenate([*tokens, self._tokens[done:]])
        self._biases = np.concatenate([*biases, self._biases[done:]])
        self._counts = counts

    def _place(self, active: NDArray[np.bool_]) -> tuple[Int64s, Int64s, NDArray[np.float32]] | None:
        """Returns the entries of active slots with their rows, None if there are none."""
        rows = np.repeat(np.cumsum(active, dtype=np.int64) - 1, self._counts)
        here = np.repeat(active, self._counts)
        if not here.any():
            return None
        if here.all():
            return rows, self._tokens, self._biases
        return rows[here], self._tokens[here], self._biases[here]
