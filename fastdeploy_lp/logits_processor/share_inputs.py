"""Slot arrays shared by the model runner, the sampler and the logits processors, and a processor's view of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.declared import Selection
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs, ReadOnlyError, ReadOnlyList
from fastdeploy_lp.platforms import current_platform, to_device
from fastdeploy_lp.request.sampling_params import SAMPLING_FIELDS, SamplingParams, Slot


class SlotSequence(Protocol):
    """A sequence as its slot shows it; `output_token_ids` is the list that grows by a token a step.

    After a rewind it is to processors another request: with another list, and another `entry_id`.
    """

    @property
    def slot(self) -> int:
        """Index of its slot."""

    @property
    def entry_id(self) -> str:
        """Unique id of the request, and of its rewinds."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """Tokens of the prompt."""

    @property
    def output_token_ids(self) -> list[int]:
        """Tokens generated so far."""

    @property
    def dropped_draws(self) -> int:
        """Number of tokens that were sampled and are not in the output."""

    @property
    def selection(self) -> Selection:
        """Its processors and their arguments."""

    @property
    def params(self) -> SamplingParams:
        """Its sampling parameters."""


@dataclass(frozen=True)
class ArrayField:
    """A slot array [slots, width]: element type, value of an empty slot, and value set by an entering sequence.

    The array is numpy, and read without waiting for the device. A `device` field also has a Paddle tensor of its name;
    its array then has the suffix `_cpu`. `width` None means `max_model_len`.
    """

    name: str
    dtype: str
    empty: float
    value: Callable[[SlotSequence], Any]
    width: int | None = 1
    device: bool = False


@dataclass(frozen=True)
class ListField:
    """A list with one Python object per slot."""

    name: str
    empty: Callable[[], Any]
    value: Callable[[SlotSequence], Any]


def _sampling_array(name: str, slot: Slot) -> ArrayField:
    """Returns the slot array that a sampling field declares."""
    return ArrayField(name, slot.dtype, slot.empty, lambda s: slot.of(getattr(s.params, name)), device=slot.device)


# The only list of fields: allocation, writing, clearing and resetting all use it.
ARRAY_FIELDS = (
    ArrayField("stop_flags", "bool", True, lambda _: True),
    ArrayField("prompt_lens", "int64", 0, lambda s: len(s.prompt_token_ids)),
    ArrayField("step_idx", "int64", 0, lambda s: len(s.output_token_ids)),
    ArrayField(
        "token_ids_all",
        "int64",
        -1,
        lambda s: np.array(s.prompt_token_ids + s.output_token_ids),
        width=None,
        device=True,
    ),
    ArrayField(
        "next_tokens",
        "int64",
        -1,
        lambda s: (s.output_token_ids or [-1])[-1],
        device=True,
    ),
    # Of the first output token, so that no number that was drawn for a dropped token is drawn again.
    ArrayField("draw_offset", "int64", 0, lambda s: len(s.prompt_token_ids) + s.dropped_draws),
    *(_sampling_array(name, slot) for name, field in SAMPLING_FIELDS.items() if (slot := field.declared.slot)),
)
LIST_FIELDS = (
    ListField("req_ids", str, lambda s: s.entry_id),
    # A processor's view contains only its own arguments.
    ListField("logits_processors_args", ProcessorArgs, lambda s: s.selection.all_args),
    ListField("sampling_params", lambda: None, lambda s: s.params),
    ListField("prompt_token_ids", ReadOnlyList, lambda s: s.prompt_token_ids),
    # The live list: each new token is appended before the next step reads it.
    ListField("output_token_ids", ReadOnlyList, lambda s: s.output_token_ids),
)


class ShareInputs(Mapping[str, Any]):
    """Mapping of slot arrays by name, for `max_num_seqs` slots.

    Row r of the logits is the r-th slot, ascending, whose entry in `stop_flags` is False. Processors read this mapping
    in `update_state`, each through a `ProcessorView`. The lists are read-only for them; only this class changes them.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._arrays: dict[str, Any] = {}
        # Fields whose tensor shares the host array's memory: one write updates both sides.
        self._shared: set[str] = set()
        for field in ARRAY_FIELDS:
            host = np.full((max_num_seqs, field.width or max_model_len), field.empty, field.dtype)
            if field.device:
                view = current_platform().view_of(host)
                self._shared |= {field.name} if view is not None else set()
                self._arrays[field.name] = to_device(host) if view is None else view
            self._arrays[_host_name(field)] = host
        for slot_list in LIST_FIELDS:
            self._arrays[slot_list.name] = ReadOnlyList(slot_list.empty() for _ in range(max_num_seqs))

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def assign(self, sequence: SlotSequence) -> None:
        """Writes an entering sequence into its slot; it yields no token before `set_active` includes the slot."""
        for field in ARRAY_FIELDS:
            self._write(field, sequence.slot, field.value(sequence))
        for slot_list in LIST_FIELDS:
            list.__setitem__(self._arrays[slot_list.name], sequence.slot, slot_list.value(sequence))

    def clear(self, slot: int) -> None:
        """Clears a slot that its sequence leaves, arguments included."""
        for field in ARRAY_FIELDS:
            row = self._arrays[_host_name(field)][slot]
            row[:] = field.empty
            self._copy_to_device(field, slot, row)
        for slot_list in LIST_FIELDS:
            list.__setitem__(self._arrays[slot_list.name], slot, slot_list.empty())

    def reset(self) -> None:
        """Clears every slot."""
        for slot in range(self.max_num_seqs):
            self.clear(slot)

    def set_active(self, slots: NDArray[np.int64] | list[int]) -> None:
        """Sets the slots that yield a token in this step."""
        self._arrays["stop_flags"][:] = True
        self._arrays["stop_flags"][slots] = False

    def append_tokens(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], counts: NDArray[np.int64] | None = None
    ) -> None:
        """Records sampled tokens: one for each of these slots [n], or `counts` [n] of them, in order, at least one."""
        num_tokens = self._arrays["step_idx"][slots, 0]
        positions = self._arrays["prompt_lens"][slots, 0] + num_tokens
        rows, last = slots, tokens
        if counts is not None:
            ends = np.cumsum(counts)
            rows, last = np.repeat(slots, counts), tokens[ends - 1]
            positions = np.repeat(positions - (ends - counts), counts) + np.arange(len(tokens))
        self._arrays["step_idx"][slots, 0] = num_tokens + (1 if counts is None else counts)
        # The last token of a full context does not fit the array; its sequence ends with it.
        if (fits := positions < self._arrays["token_ids_all_cpu"].shape[1]).all():
            self._put("token_ids_all", rows, positions, tokens)
        else:
            self._put("token_ids_all", rows[fits], positions[fits], tokens[fits])
        self._put("next_tokens", slots, np.zeros_like(slots), last)

    def _put(self, name: str, rows: NDArray[np.int64], cols: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        self._arrays[f"{name}_cpu"][rows, cols] = values
        if rows.size and name not in self._shared:
            self._arrays[name].index_put_((to_device(rows), to_device(cols)), to_device(values))

    def _write(self, field: ArrayField, slot: int, value: Any) -> None:
        row = self._arrays[_host_name(field)][slot]
        if field.width == 1:
            row[0] = value
        else:
            row[: len(value)] = value
            row[len(value) :] = field.empty
        self._copy_to_device(field, slot, row)

    def _copy_to_device(self, field: ArrayField, slot: int, row: NDArray[Any]) -> None:
        if field.device and field.name not in self._shared:
            self._arrays[field.name][slot] = to_device(row)


def _host_name(field: ArrayField) -> str:
    return f"{field.name}_cpu" if field.device else field.name


class ProcessorView(Mapping[str, Any]):
    """The slot arrays with a processor's arguments and its group's rows.

    Two fields exist only in the view. `using_slots`: the slots whose requests are meant for this processor.
    `args_versions` [S]: a number for each slot that rises with every change of its arguments.

    With `read_only`, no write of the processor reaches the engine or another processor. Host arrays are read-only
    views, and lists refuse the methods that change them. Tensors and sampling parameters are copies, made at their
    first read; `require_unchanged` finds writes to the tensors.
    """

    def __init__(self, max_num_seqs: int, *, read_only: bool = False) -> None:
        self.args: list[ProcessorArgs] = ReadOnlyList(ProcessorArgs() for _ in range(max_num_seqs))
        self.using: set[int] = set()
        # Rises with every change of a request in a slot, and with every new instance of the processor.
        self.num_changes = 0
        self._read_only = read_only
        self._share_inputs: Mapping[str, Any] = {}
        self._versions = np.zeros(max_num_seqs, np.int64)
        self._own: dict[str, Any] = {
            "logits_processors_args": self.args,
            "using_slots": self.using,
            "args_versions": self._versions,
        }
        # By field, the engine's array or list and the processor's view of it: both stay the same for many steps.
        self._views: dict[str, tuple[Any, Any]] = {}
        # This step only: copies of tensors, with their versions at creation.
        self._tensors: dict[str, tuple[Any, int]] = {}

    def set_args(self, slot: int, args: ProcessorArgs) -> None:
        """Changes the arguments that the processor sees in a slot."""
        # Nested values belong to the request, and its other processors see them too.
        list.__setitem__(self.args, slot, copy.deepcopy(args) if self._read_only and args else args)
        self._versions[slot] += 1
        self.num_changes += 1

    def bind(self, share_inputs: Mapping[str, Any], stop_flags: Any) -> None:
        """Sets the slot arrays and the stop flags to read from."""
        self._share_inputs = share_inputs
        self._own["stop_flags"] = stop_flags
        self.drop_copies()

    def drop_copies(self) -> None:
        """Drops the copies of an earlier step's tensors."""
        if self._tensors:
            self._tensors = {}

    def require_unchanged(self) -> None:
        """Raises ReadOnlyError if the processor has written to a tensor of this step."""
        for name, (tensor, version) in self._tensors.items():
            if tensor.inplace_version != version:
                raise ReadOnlyError(f"share_inputs[{name!r}]")

    def __getitem__(self, name: str) -> Any:
        value = self._own[name] if name in self._own else self._share_inputs[name]
        return self._protected(name, value) if self._read_only else value

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise ReadOnlyError("share_inputs")

    def __delitem__(self, name: str) -> NoReturn:
        raise ReadOnlyError("share_inputs")

    def __iter__(self) -> Iterator[str]:
        return iter(self._own.keys() | self._share_inputs.keys())

    def __len__(self) -> int:
        return len(self._own.keys() | self._share_inputs.keys())

    def _protected(self, name: str, value: Any) -> Any:
        known = self._views.get(name)
        if known is not None and known[0] is value:
            return known[1]
        if isinstance(value, set):
            return frozenset(value)
        if not isinstance(value, (np.ndarray, list)):
            return self._tensor(name, value)
        protected = _view_of(name, value)
        self._views[name] = value, protected
        return protected

    def _tensor(self, name: str, value: Any) -> Any:
        if name not in self._tensors:
            tensor = value.clone()
            self._tensors[name] = tensor, tensor.inplace_version
        return self._tensors[name][0]


class CopiedParams(Sequence[Any]):
    """The sampling parameters [S] of a view: a copy for each request, None for an empty slot."""

    def __init__(self, params: Sequence[Any]) -> None:
        self._params = params
        self._copies: list[tuple[Any, Any]] = [(None, None)] * len(params)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[slot] for slot in range(*index.indices(len(self)))]
        original, copied = self._copies[index]
        if original is not self._params[index]:
            original = self._params[index]
            copied = copy.deepcopy(original)
            self._copies[index] = original, copied
        return copied

    def __len__(self) -> int:
        return len(self._params)


def _view_of(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    return CopiedParams(value) if name == "sampling_params" else value
