"""`share_inputs` as FastDeploy's processors read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.read_only_list import ReadOnlyError
from fastdeploy_lp.platforms.host_tensor import host_tensor

ON_HOST = "_cpu"
EMPTY = -1


class FastDeployInputs(Mapping[str, Any]):
    """The slots of a step that have a row, without the others: slot r is row r of the logits.

    FastDeploy's processors disagree on the row of a slot: LogitBias counts the slots that are not stopped,
    ThinkingBudget uses the slot number. Without stopped slots both find the same row. A request's slot changes when
    another request ends, so processors must store by `req_ids` what lasts for several steps.

    Arrays are Paddle tensors on the CPU, made from host copies at a field's first read in a step. A read never waits
    for the device, and a write changes only the copy.
    """

    def __init__(self) -> None:
        self._source: Mapping[str, Any] = {}
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        self._made: dict[str, Any] = {}
        self._prepare: Callable[[Any], Any] = lambda args: args

    def bind(self, share_inputs: Mapping[str, Any], prepare: Callable[[Any], Any]) -> None:
        """Sets the slots of a step; `prepare` converts a slot's arguments to the form that the processor reads."""
        self._source, self._prepare, self._made = share_inputs, prepare, {}
        self._slots = np.flatnonzero(~share_inputs["stop_flags"][:, 0])

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise ReadOnlyError("share_inputs")

    def __delitem__(self, name: str) -> NoReturn:
        raise ReadOnlyError("share_inputs")

    def __iter__(self) -> Iterator[str]:
        own = (name for name in self._source if not name.endswith(ON_HOST) and name not in ("using_slots", "seed"))
        yield from own
        yield from DERIVED

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _make(self, name: str) -> Any:
        if name in DERIVED:
            return host_tensor(DERIVED[name](self._source, self._slots))
        host = f"{name}{ON_HOST}"
        value = self._source[host if host in self._source else name]
        if isinstance(value, np.ndarray):
            return host_tensor(value[self._slots])
        entries = [value[slot] for slot in self._slots.tolist()]
        return [self._prepare(args) for args in entries] if name == "logits_processors_args" else entries


def _prompts(source: Mapping[str, Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    return _pieces(source, slots, np.zeros_like(slots), source["prompt_lens"][slots, 0])


def _outputs(source: Mapping[str, Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    return _pieces(source, slots, source["prompt_lens"][slots, 0], source["step_idx"][slots, 0])


def _pieces(
    source: Mapping[str, Any], slots: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns each slot's `lengths` tokens from `starts` on, at the beginning of a row."""
    tokens = source[f"token_ids_all{ON_HOST}"]
    rows = np.full((len(slots), tokens.shape[1]), EMPTY, np.int64)
    for row, (slot, start, length) in enumerate(zip(slots, starts, lengths, strict=True)):
        # The last token of a full context does not fit into the array.
        piece = tokens[slot, start : start + length]
        rows[row, : len(piece)] = piece
    return rows


def _seeds(source: Mapping[str, Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    seeds: NDArray[np.int64] = source["seed"][slots].view(np.int64)
    return seeds


DERIVED: dict[str, Callable[[Mapping[str, Any], NDArray[np.int64]], NDArray[Any]]] = {
    "prompt_ids": _prompts,
    "pre_ids": _outputs,
    "infer_seed": _seeds,
}
"""FastDeploy's fields that this server has no array for."""
