"""The slot arrays that a processor reads, as the worker has them, filled by hand instead of by an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.read_only_list import ReadOnlyList
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.sampling_params import SamplingParams

ON_BOTH_SIDES = ("token_ids_all", "next_tokens", "temperature", "top_p", "top_k", "min_p")
"""Fields with a tensor on the device under their name, and the host's array under the name with `_cpu` behind it."""


@dataclass
class Occupant:
    """A request in a slot: `output` is the list that grows by a token a step."""

    request_id: str
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    selection: Selection = field(default_factory=Selection)
    params: SamplingParams = field(default_factory=SamplingParams)


class Slots(Mapping[str, Any]):
    """`share_inputs` for `max_num_seqs` slots, with all fields that the worker's has."""

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        def column(dtype: str, empty: float, width: int = 1) -> NDArray[Any]:
            return np.full((max_num_seqs, width), empty, dtype)

        self._host: dict[str, NDArray[Any]] = {
            "stop_flags": column("bool", True),
            "prompt_lens": column("int64", 0),
            "step_idx": column("int64", 0),
            "token_ids_all": column("int64", -1, max_model_len),
            "next_tokens": column("int64", -1),
            "temperature": column("float32", 0.0),
            "top_p": column("float32", 1.0),
            "top_k": column("int64", 0),
            "min_p": column("float32", 0.0),
            "seed": column("uint64", 0),
        }
        self._empty = {name: array[0].copy() for name, array in self._host.items()}
        self._lists: dict[str, list[Any]] = {
            name: ReadOnlyList(empty() for _ in range(max_num_seqs)) for name, empty in LISTS.items()
        }
        self._shared = {name: current_platform().view_of(self._host[name]) for name in ON_BOTH_SIDES}

    def __getitem__(self, name: str) -> Any:
        if name in self._lists:
            return self._lists[name]
        if name in self._shared:
            return self._on_device(name)
        host = name.removesuffix("_cpu")
        if host != name and host not in self._shared:
            raise KeyError(name)
        return self._host[host]

    def __iter__(self) -> Iterator[str]:
        yield from self._host
        yield from (f"{name}_cpu" for name in self._shared)
        yield from self._lists

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def assign(self, slot: int, occupant: Occupant) -> None:
        """A request takes the slot, with the tokens it has; `set_active` says when it has a row."""
        self.clear(slot)
        params = occupant.params
        tokens = occupant.prompt + occupant.output
        values: dict[str, Any] = {
            "prompt_lens": len(occupant.prompt),
            "step_idx": len(occupant.output),
            "next_tokens": (occupant.output or [-1])[-1],
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": max(params.top_k, 0),
            "min_p": params.min_p,
            "seed": params.seed or 0,
        }
        for name, value in values.items():
            self._host[name][slot] = value
        self._host["token_ids_all"][slot, : len(tokens)] = tokens
        entries: dict[str, Any] = {
            "req_ids": occupant.request_id,
            "logits_processors_args": occupant.selection.all_args,
            "sampling_params": params,
            "prompt_token_ids": occupant.prompt,
            "output_token_ids": occupant.output,
        }
        for name, entry in entries.items():
            list.__setitem__(self._lists[name], slot, entry)

    def clear(self, slot: int) -> None:
        """Empty the slot, arguments included."""
        for name, array in self._host.items():
            array[slot] = self._empty[name]
        for name, entries in self._lists.items():
            list.__setitem__(entries, slot, LISTS[name]())

    def set_active(self, slots: list[int]) -> None:
        """Say which slots have a row this step."""
        self._host["stop_flags"][:] = True
        self._host["stop_flags"][slots] = False

    def append_token(self, slot: int, token: int) -> None:
        """Record what was sampled for the slot."""
        position = int(self._host["prompt_lens"][slot, 0] + self._host["step_idx"][slot, 0])
        self._host["step_idx"][slot] += 1
        self._host["next_tokens"][slot] = token
        # The last token of a full context has no place in the array.
        if position < self._host["token_ids_all"].shape[1]:
            self._host["token_ids_all"][slot, position] = token
        list.append(self._lists["output_token_ids"][slot], token)

    def _on_device(self, name: str) -> Any:
        if self._shared[name] is not None:
            return self._shared[name]
        import paddle

        return paddle.to_tensor(self._host[name])


LISTS: dict[str, Callable[[], Any]] = {
    "req_ids": str,
    "logits_processors_args": ProcessorArgs,
    "sampling_params": lambda: None,
    "prompt_token_ids": ReadOnlyList,
    "output_token_ids": ReadOnlyList,
}
"""Fields with a Python object a slot, and what an empty slot holds."""
