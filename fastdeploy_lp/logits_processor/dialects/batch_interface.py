"""The classes of batch updates, by the module that a processor imports them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.logits_processor import vllm_v1


@dataclass(frozen=True)
class BatchInterface:
    """A module's own `BatchUpdate` and directions: processors compare a direction with that of the module they import.

    A member of another enum is equal to none of them, so a processor would take every swap for a one-way move.
    """

    batch_update: Callable[..., Any]
    one_way: Any
    swap: Any

    @classmethod
    def of(cls, module: Any) -> BatchInterface:
        """The names of `vllm.v1.sample.logits_processor`, or of a module of that interface."""
        directions = module.MoveDirectionality
        return cls(module.BatchUpdate, directions.UNIDIRECTIONAL, directions.SWAP)


OWN = BatchInterface.of(vllm_v1)
