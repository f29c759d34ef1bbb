"""Hostile processors of every dialect: each fails in the way that a request asks for, and changes nothing otherwise.

Each has one argument of its own, so that a flat request meets one of them alone. `hostile_torch` has those for torch.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_v1

GARBAGE = 1e6
EXIT_STATUS = 7
# Large enough for a pthread_mutex_t; zeros are an unlocked one.
MUTEX_BYTES = 256


class PanicException(BaseException):
    """As PyO3 raises it when Rust code panics."""


class Unprintable(Exception):  # noqa: N818 - a hostile name is part of it
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("hostile"),
    "CancelledError": asyncio.CancelledError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "PanicException": lambda: PanicException("hostile"),
    "Unprintable": Unprintable,
}


def _hang_in_python() -> NoReturn:
    while True:
        pass


def _wait_for_itself(library: ctypes.CDLL) -> None:
    """Lock a mutex twice: no signal ends this wait, so that only the process's end does."""
    mutex = ctypes.create_string_buffer(MUTEX_BYTES)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


DEADLY: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(EXIT_STATUS),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang in C": lambda: _wait_for_itself(ctypes.CDLL(None)),
    "hang in C with the GIL": lambda: _wait_for_itself(ctypes.PyDLL(None)),
}
HANG = "hang in Python"
WRITES_NAN, WRITES_NOTHING_ELSE, WRITES_GARBAGE = "NaN", "-inf", "garbage"


class Fault(BaseModel):
    """A request's order: `mode` fails once there are `at` tokens (`transformers`: with those of the prompt).

    where: "step" in apply or the call, "state" in update_state, "build" in the constructor of a request's instance,
    "validate" in validate_params.
    """

    model_config = ConfigDict(extra="forbid")

    mode: str | None = None
    at: int = 0
    where: Literal["step", "state", "build", "validate"] = "step"

    @classmethod
    def of(cls, value: Any) -> Fault:
        """A fault from an argument; one that never comes for None."""
        return value if isinstance(value, Fault) else cls.model_validate(value or {})

    def strike(self, where: str) -> None:
        """Raise, hang or end the process, if it is to happen here."""
        if self.where != where or self.mode is None:
            return
        if self.mode in RAISED:
            raise RAISED[self.mode]()
        if self.mode == HANG:
            _hang_in_python()
        if self.mode in DEADLY:
            DEADLY[self.mode]()

    def strike_row(self, row: Any, num_tokens: int) -> Any:
        """The row of the request that ordered it, [vocab_size] or [1, vocab_size] of Paddle or torch."""
        if num_tokens < self.at:
            return row
        self.strike("step")
        if self.mode == WRITES_NAN:
            row[:] = float("nan")
        elif self.mode == WRITES_NOTHING_ELSE:
            row[:] = float("-inf")
        elif self.mode == WRITES_GARBAGE:
            row[:] = GARBAGE
        return row


def strike_batch(due: Mapping[int, Fault], logits: Any) -> Any:
    """All rows of a batch [rows, vocab_size], of which those in `due` have ordered a fault for now."""
    if any(fault.mode == WRITES_GARBAGE for fault in due.values()):
        logits[:] = GARBAGE
    for row, fault in due.items():
        fault.strike("step")
        if fault.mode == WRITES_NAN:
            logits[row] = float("nan")
        elif fault.mode == WRITES_NOTHING_ELSE:
            logits[row] = float("-inf")
    return logits


def strike_state(due: Iterable[Fault]) -> None:
    """Those that are to happen where state is read."""
    for fault in due:
        fault.strike("state")


class NativeBody(LogitsProcessor):
    """`key`: the argument that has a request's order."""

    key: ClassVar[str]

    def __init__(self, fd_config: Any) -> None:
        self._due: dict[int, Fault] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        Fault.of((sampling_params.extra_args or {}).get(cls.key)).strike("validate")

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._due = {}
        for row, slot in enumerate(np.flatnonzero(~share_inputs["stop_flags"][:, 0])):
            fault = Fault.of(share_inputs["logits_processors_args"][slot].get(self.key))
            if fault.mode and len(share_inputs["output_token_ids"][slot]) >= fault.at:
                self._due[row] = fault
        strike_state(self._due.values())

    def apply(self, logits: Any) -> Any:
        return strike_batch(self._due, logits)


class GuardedParams(BaseModel):
    hostile_guarded: Fault | None = None


class Guarded(NativeBody):
    """Native, with `Params`, and called with requests that pass them alone."""

    Params = GuardedParams
    only_with_args = True
    key = "hostile_guarded"


class Opaque(NativeBody):
    """Native, without `Params`, called in each step."""

    key = "hostile_opaque"


class VllmBody:
    """vLLM V1, on whichever base class; `key` as in NativeBody."""

    key: ClassVar[str]

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Fault, list[int]]] = {}
        self._due: dict[int, Fault] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        Fault.of((sampling_params.extra_args or {}).get(cls.key)).strike("validate")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is not None:
            self._follow(batch_update)
        self._due = {row: fault for row, (fault, output) in self._rows.items() if len(output) >= fault.at}
        strike_state(self._due.values())

    def apply(self, logits: Any) -> Any:
        return strike_batch(self._due, logits)

    def _follow(self, batch_update: Any) -> None:
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, output in batch_update.added:
            self._rows[row] = Fault.of((params.extra_args or {}).get(self.key)), output
        for source, target, direction in batch_update.moved:
            moved = {target: self._rows.pop(source, None), source: self._rows.pop(target, None)}
            if direction.name != "SWAP":
                del moved[source]
            self._rows |= {row: each for row, each in moved.items() if each is not None}


class VllmPaddle(VllmBody, vllm_v1.LogitsProcessor):
    """vLLM V1, on Paddle tensors."""

    key = "hostile_vllm_paddle"


class Adapter(vllm_v1.AdapterLogitsProcessor):
    """A callable for each request."""

    key = "hostile_adapter"

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        Fault.of((sampling_params.extra_args or {}).get(cls.key)).strike("validate")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[..., Any] | None:
        fault = Fault.of((params.extra_args or {}).get(self.key))
        fault.strike("build")
        return (lambda output_ids, row: fault.strike_row(row, len(output_ids))) if fault.mode else None


class PluginParameters(BaseModel):
    hostile_plugin: Fault


class PerRequest:
    """An instance for each request that names it."""

    def __init__(self, tokenizer: Any, parameters: PluginParameters) -> None:
        self._fault = parameters.hostile_plugin
        self._fault.strike("build")

    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        return self._fault.strike_row(logits, len(token_ids))


PLUGIN = {"logits_processor_class": PerRequest, "parameters_model": PluginParameters}


class Tilt(LogitsProcessor):
    """Harmless, of a third party, and at work on every row: answers without it would be others."""

    def __init__(self, fd_config: Any) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Any) -> Any:
        logits[:, 7::11] *= 0.5
        return logits
