"""Bans of tokens at the place to which a sequence was rewound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.model_executor.ops.row_ops import Int64s, RowEdits

REWIND_BAN = "rewind_ban"


@dataclass(frozen=True)
class _Banned:
    """`tokens` cannot be sampled while the output has its present `length`."""

    tokens: Int64s
    length: int
    output: list[int]


class RewindBans(SlotProcessor[_Banned]):
    """Sets the logits of the argument `rewind_ban`, token ids, to -inf in the request's first step in its slot.

    A rewound request enters its slot again, so that this step is the one at the place that it returned to.
    """

    def __init__(self, fd_config: FDConfig, edits: RowEdits | None = None) -> None:
        super().__init__(fd_config, edits)
        self._rows = self._tokens = np.empty(0, np.int64)

    def _build(self, request: SlotRequest) -> _Banned | None:
        banned = request.args.get(REWIND_BAN)
        return _Banned(np.array(sorted(banned), np.int64), len(request.output), request.output) if banned else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - in the states
        here = [(row, state.tokens) for row, state in self._slots if len(state.output) == state.length]
        self._rows = np.repeat([row for row, _ in here], [len(tokens) for _, tokens in here]).astype(np.int64)
        self._tokens = np.concatenate([tokens for _, tokens in here]) if here else np.empty(0, np.int64)

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._edits.ban(logits, self._rows, self._tokens)
