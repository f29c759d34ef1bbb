"""A package of vLLM's interface with classes of its own, as a process finds them where vLLM is installed.

Nothing here derives from a class of fastdeploy_lp, and the adapter keeps no row's fault to itself.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

import torch

from support.hash_bias import bias_of, place


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = "one way"
    SWAP = "both ways"


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: Any
    added: Any
    moved: Any


class LogitsProcessor(ABC):
    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ARG003 - refuses nothing
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: Any) -> Any: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abstractmethod
    def update_state(self, batch_update: Any) -> None: ...


class VLLMClientError(Exception):
    """No ValueError, as in a vLLM of today."""


def follow(rows: dict[int, Any], update: BatchUpdate | None, new_state: Callable[..., Any]) -> None:
    """Row state by the documented rules; refuses what another package made."""
    if update is None:
        return
    assert isinstance(update, BatchUpdate)
    for row, *request in update.added:
        rows.pop(row, None)
        if (state := new_state(*request)) is not None:
            rows[row] = state
    for row in update.removed:
        rows.pop(row, None)
    for source, target, direction in update.moved:
        assert isinstance(direction, MoveDirectionality)
        moved, other = rows.pop(source, None), rows.pop(target, None)
        if moved is not None:
            rows[target] = moved
        if direction == MoveDirectionality.SWAP and other is not None:
            rows[source] = other


class AdapterLogitsProcessor(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Any] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: Any) -> Any: ...

    def _new_state(self, params: Any, prompt_ids: list[int], output_ids: list[int]) -> Any:
        made = self.new_req_logits_processor(params)
        return None if made is None else lambda row: made(prompt_ids, output_ids, row)

    def update_state(self, batch_update: Any) -> None:
        follow(self.req_info, batch_update, self._new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, process in self.req_info.items():
            logits[row] = process(logits[row])
        return logits


class RowState(LogitsProcessor):
    """The processor of `hash_bias`, its state kept by row."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, Any] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        follow(self._rows, batch_update, lambda params, *ids: (bias_of(params), ids) if bias_of(params) else None)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, ((token, value), (prompt, output)) in self._rows.items():
            logits[row, place(token, [*prompt, *output])] += value
        return logits


class Adapted(AdapterLogitsProcessor):
    """The same by an adapter; a token below 0 has its request fail."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        if (sampling_params.extra_args or {}).get("refused"):
            raise VLLMClientError("not this one")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        if not bias_of(params):
            return None
        token, value = bias_of(params)

        def process(prompt: list[int], output: list[int], row: torch.Tensor) -> torch.Tensor:
            if token < 0:
                raise LookupError("a request of its own")
            row[place(token, [*prompt, *output])] += value
            return row

        return process


@contextmanager
def installed_vllm() -> Iterator[None]:
    """vLLM's module names lead to the classes above."""
    assert "vllm" not in sys.modules
    this = sys.modules[__name__]
    names = ("vllm", "vllm.v1", "vllm.v1.sample")
    sys.modules |= {name: ModuleType(name) for name in names}
    sys.modules |= {"vllm.v1.sample.logits_processor": this, "vllm.exceptions": this}
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]
