"""A logits processor as a plugin: installed beside a server, it is in the server's chain."""

from __future__ import annotations

import numpy as np
import paddle
from pydantic import BaseModel

from fastdeploy_lp import FDConfig
from fastdeploy_lp.openai.logits_processor import LogitsProcessor


class Params(BaseModel):
    """Arguments of a request."""

    no_immediate_repeat: bool | None = None


class NoImmediateRepeat(LogitsProcessor):
    """Bans the token that stands last, so that no token follows itself."""

    Params = Params
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._rows: list[int] = []
        self._tokens: list[int] = []

    def update_state(self, share_inputs):
        """Row r of the logits is the r-th slot, ascending, whose stop flag is False."""
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        wanted = [
            (row, share_inputs["output_token_ids"][slot][-1])
            for row, slot in enumerate(active)
            if share_inputs["logits_processors_args"][slot].no_immediate_repeat
            and share_inputs["output_token_ids"][slot]
        ]
        self._rows, self._tokens = [row for row, _ in wanted], [token for _, token in wanted]

    def apply(self, logits):
        """logits [rows, vocab_size], changed in place."""
        if not self._rows:
            return logits
        where = (paddle.to_tensor(self._rows), paddle.to_tensor(self._tokens))
        return logits.index_put_(where, paddle.full([len(self._rows)], -np.inf, logits.dtype))
