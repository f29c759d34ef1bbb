"""Builds `BatchUpdate`s for vLLM-style processors from slot arrays, in which requests never move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.vllm_v1 import AddedRequest
from fastdeploy_lp.request.sampling_params import SamplingParams


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


class ServedParams(SamplingParams, kw_only=True):
    """A copy for one processor; it never leaves the worker.

    extra_args: the arguments that this processor sees of the request, None for none.
    logit_bias: the argument of that name, if it has OpenAI's form.
    model_eos_token_ids: the model's end-of-sequence tokens, the primary one first.
    """

    model_eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, params: SamplingParams, args: Mapping[str, Any], model_eos_token_ids: tuple[int, ...] = ()
    ) -> ServedParams:
        """Returns a copy of a slot's parameters with the arguments that a processor sees of it."""
        fields = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
        seen: dict[str, Any] = {"extra_args": dict(args) or None, "logit_bias": _bias(args.get("logit_bias"))}
        return cls(**(fields | seen), model_eos_token_ids=model_eos_token_ids)

    @property
    def eos_token_id(self) -> int | None:
        """Token that ends the output by itself; None with `ignore_eos`, as in vLLM."""
        return None if self.ignore_eos else next(iter(self.model_eos_token_ids), None)

    @property
    def all_stop_token_ids(self) -> set[int]:
        """`stop_token_ids` and the model's end-of-sequence tokens, with `ignore_eos` too, as in vLLM."""
        return {*(self.stop_token_ids or ()), *self.model_eos_token_ids}


def _bias(given: object) -> dict[int, float] | None:
    if not isinstance(given, Mapping):
        return None
    try:
        return {int(token): float(value) for token, value in given.items()} or None
    except (TypeError, ValueError):
        return None


class BatchTracker:
    """Keeps every request's row as vLLM's persistent batch would, and ends each update in slot order.

    Rules as in vLLM's documentation: new requests take freed rows, lowest first, then extend the batch; rows left free
    are removed, and one-way moves from the highest row to the lowest hole condense the batch; swaps then bring the rows
    into the order of the logits.

    interface: classes that updates are made of. eos_token_ids: the model's, for `SamplingParams` of new requests.
    """

    def __init__(self, interface: BatchInterface = OWN, eos_token_ids: tuple[int, ...] = ()) -> None:
        self._interface = interface
        self._eos_token_ids = eos_token_ids
        self._rows: list[str] = []

    def update(self, share_inputs: Mapping[str, Any]) -> Any:
        """Returns the changes since the last call as the interface's `BatchUpdate`; None if the rows are unchanged."""
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        wanted = [share_inputs["req_ids"][slot] for slot in active]
        if wanted == self._rows:
            return None
        slots = dict(zip(wanted, active, strict=True))
        old = set(self._rows)
        free = [row for row, request in enumerate(self._rows) if request not in slots]
        added = [self._add(request, free, share_inputs, slots[request]) for request in wanted if request not in old]
        removed, moved = list(free), self._condense(free)
        moved += self._reorder(wanted)
        return self._interface.batch_update(batch_size=len(wanted), removed=removed, added=added, moved=moved)

    def _add(self, request: str, free: list[int], share_inputs: Mapping[str, Any], slot: int) -> AddedRequest:
        if free:
            row = free.pop(0)
            self._rows[row] = request
        else:
            row = len(self._rows)
            self._rows.append(request)
        args = share_inputs["logits_processors_args"][slot]
        params = ServedParams.of(share_inputs["sampling_params"][slot], args, self._eos_token_ids)
        return row, params, share_inputs["prompt_token_ids"][slot], share_inputs["output_token_ids"][slot]

    def _condense(self, holes: list[int]) -> list[tuple[int, int, Any]]:
        moves: list[tuple[int, int, Any]] = []
        remaining = set(holes)
        while remaining:
            last = len(self._rows) - 1
            if last in remaining:
                remaining.discard(last)
            else:
                hole = min(remaining)
                remaining.discard(hole)
                self._rows[hole] = self._rows[last]
                moves.append((last, hole, self._interface.one_way))
            self._rows.pop()
        return moves

    def _reorder(self, wanted: list[str]) -> list[tuple[int, int, Any]]:
        moves: list[tuple[int, int, Any]] = []
        where = {request: row for row, request in enumerate(self._rows)}
        for row, request in enumerate(wanted):
            current = where[request]
            if current == row:
                continue
            other = self._rows[row]
            self._rows[row], self._rows[current] = request, other
            where[request], where[other] = row, current
            moves.append((current, row, self._interface.swap))
        return moves
