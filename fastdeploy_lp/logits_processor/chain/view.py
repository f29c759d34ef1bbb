"""`share_inputs` as one processor sees it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, overload

import numpy as np

from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs, ReadOnlyError, ReadOnlyList


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
