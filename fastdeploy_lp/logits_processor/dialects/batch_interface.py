"""Classes of batch updates, by the module that a processor imports them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.logits_processor import vllm_v1


@dataclass(frozen=True)
class BatchInterface:
    """A module's `BatchUpdate` and directions; processors compare directions with the ones of the module they import.

    Members of different enums are never equal, so with another module's enum a processor would take every swap for a
    one-way move.
    """

    batch_update: Callable[..., Any]
    one_way: Any
    swap: Any

    @classmethod
    def of(cls, module: Any) -> BatchInterface:
        """Returns the names of `vllm.v1.sample.logits_processor`, or of a module of that interface."""
        directions = module.MoveDirectionality
        return cls(module.BatchUpdate, directions.UNIDIRECTIONAL, directions.SWAP)


OWN = BatchInterface.of(vllm_v1)
