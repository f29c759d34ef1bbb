"""Processors that copy the logits they are shown, by request and step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor

Rows = dict[tuple[str, int], NDArray[np.float32]]


class Recorder(LogitsProcessor):
    """Changes nothing. `rows` maps (request id, output tokens so far) to a copy of its row, for all instances."""

    rows: ClassVar[Rows] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.rows = {}

    def __init__(self, fd_config: FDConfig) -> None:
        self._keys: list[tuple[str, int]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._keys = [(share_inputs["req_ids"][slot], int(share_inputs["step_idx"][slot, 0])) for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        type(self).rows.update(zip(self._keys, np.array(logits.numpy()), strict=True))
        return logits


class Before(Recorder):
    """Stands first."""


class After(Recorder):
    """Stands last."""


def forget() -> None:
    """Start a new run."""
    Before.rows.clear()
    After.rows.clear()
