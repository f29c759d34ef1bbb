"""Restricts the output to chosen tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.builtin.token_lists import TokenSet
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor


class AllowedTokensParams(BaseModel):
    """`allowed_token_ids`: at least one token id."""

    model_config = ConfigDict(extra="forbid")

    allowed_token_ids: TokenSet | None = None


class AllowedTokensLogitsProcessor(SlotProcessor[NDArray[np.int64]]):
    """`{"allowed_token_ids": [token_id, …]}` sets every other token to -inf.

    Same rule as the sampler's field of this name (as in vLLM), applied at the processor's place in the chain.
    """

    Params = AllowedTokensParams

    def _build(self, request: SlotRequest) -> NDArray[np.int64] | None:
        allowed = request.args.get("allowed_token_ids")
        return np.unique(np.array(allowed, np.int64)) if allowed else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - the rows tell all
        if changed and self._slots.states:
            from fastdeploy_lp.model_executor.ops.row_ops import TokenLists

            self._lists = TokenLists.of(self._slots.rows.tolist(), self._slots.states)

    def _edit(self, logits: Tensor) -> None:
        self._ops.allow_only(logits, self._lists)
