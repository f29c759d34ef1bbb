"""A logits processor that takes its worker along, or holds it up, when a request asks for it."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.openai.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor


class DeadlyParams(BaseModel):
    """`deadly`: how the worker ends; `deadly_at`: once the request has so many tokens."""

    deadly: Literal["segfault", "exit", "hang", "kill", "fail"] | None = None
    deadly_at: int = 0


class Deadly(LogitsProcessor):
    """Changes nothing until then."""

    Params = DeadlyParams

    def __init__(self, fd_config: FDConfig) -> None:
        self._due: str | None = None

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._due = None
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]):
            args = share_inputs["logits_processors_args"][slot]
            if args.deadly is not None and len(share_inputs["output_token_ids"][slot]) >= (args.deadly_at or 0):
                self._due = args.deadly

    def apply(self, logits: Tensor) -> Tensor:
        if self._due == "segfault":
            ctypes.string_at(0)
        elif self._due == "exit":
            os._exit(7)
        elif self._due == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._due == "hang":
            threading.Event().wait()
        elif self._due == "fail":
            raise RuntimeError("a request asked for it")
        return logits
