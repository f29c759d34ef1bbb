"""A plugin dict that ends the process in which it is built or called, or holds it up, when its arguments say so."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any, Literal

from pydantic import BaseModel, model_validator

NICENESS_AT_IMPORT = os.getpriority(os.PRIO_PROCESS, 0)


def strike(mode: str) -> None:
    print("an author's print, which is no reply")
    if mode == "exit":
        os._exit(7)
    elif mode == "segfault":
        ctypes.string_at(0)
    elif mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "hang":
        threading.Event().wait()
    elif mode == "refuse":
        raise ValueError("these arguments do not fit")
    elif mode == "tell":
        raise ValueError(f"imported at niceness {NICENESS_AT_IMPORT}")


class DeadlyArgs(BaseModel):
    """`mode`: how it ends its process. `when`: as its arguments are read, in its constructor or in its first call."""

    mode: Literal["exit", "segfault", "kill", "hang", "refuse", "tell", "none"] = "none"
    when: Literal["read", "build", "call"] = "build"

    @model_validator(mode="after")
    def strikes(self) -> DeadlyArgs:
        if self.when == "read":
            strike(self.mode)
        return self


class Deadly:
    """Changes nothing."""

    def __init__(self, tokenizer: Any, parameters: DeadlyArgs) -> None:
        self._args = parameters
        self._strike("build")

    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        self._strike("call")
        return logits

    def _strike(self, when: str) -> None:
        strike(self._args.mode if when == self._args.when else "none")


PLUGIN = {"logits_processor_class": Deadly, "parameters_model": DeadlyArgs}
