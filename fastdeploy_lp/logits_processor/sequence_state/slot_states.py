"""Follows requests through slots for a processor that keeps something of its own for each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fastdeploy_lp.sampling_params import SamplingParams

State = TypeVar("State")


@dataclass(frozen=True)
class SlotRequest:
    """What a processor may read of the request in a slot.

    args: the arguments that are meant for the processor. prompt: its tokens. output: the live list of those generated
    so far. params: everything else that it asks for.
    """

    args: Mapping[str, Any]
    prompt: list[int]
    output: list[int]
    params: SamplingParams


class SlotStates(Generic[State]):
    """A state for every request that uses a processor, made from all its tokens when the request first has a row.

    After `follow`, `states[i]` is about the request in slot `slots[i]`, whose logits are row `rows[i]`; int64 [n] both.
    A request that was preempted comes back with its output, from which its state is made anew; where a state holds what
    the tokens do not tell, `remember` keeps so many states of requests that left for that case.
    """

    def __init__(self, build: Callable[[SlotRequest], State | None], *, remember: int = 0) -> None:
        """`build` gives None for a request that the processor leaves alone."""
        self._build = build
        self._remember = remember
        self._held: dict[int, _Held[State]] = {}
        # By the identity of the output list, which is the request's own and is kept alive here.
        self._left: OrderedDict[int, _Held[State]] = OrderedDict()
        self._last: tuple[bytes, bytes] | None = None
        self.slots = self.rows = np.empty(0, np.int64)
        self.states: list[State] = []

    def __iter__(self) -> Iterator[tuple[int, State]]:
        """Row and state of each request."""
        return zip(self.rows.tolist(), self.states, strict=True)

    def follow(self, share_inputs: Mapping[str, Any]) -> bool:
        """Read the slots of a step; gives whether rows or states are others than in the last one.

        Nothing but two short arrays is read while the batch stays as it is. A mapping without `args_versions`, which
        the chain adds, is read as a whole every time.
        """
        stop_flags, versions = share_inputs["stop_flags"], share_inputs.get("args_versions")
        now = None if versions is None else (stop_flags.tobytes(), versions.tobytes())
        if now is not None and now == self._last:
            return False
        self._last = now
        active = ~stop_flags[:, 0]
        # A mapping without the chain's own field shows every request to the processor.
        using = share_inputs.get("using_slots")
        self._read(share_inputs, [slot for slot in np.flatnonzero(active).tolist() if using is None or slot in using])
        found = [(slot, state) for slot in sorted(self._held) if (state := self._held[slot].state) is not None]
        found = [(slot, state) for slot, state in found if active[slot]]
        self.slots = np.array([slot for slot, _ in found], np.int64)
        self.rows = np.cumsum(active, dtype=np.int64)[self.slots] - 1
        self.states = [state for _, state in found]
        return True

    def _read(self, share_inputs: Mapping[str, Any], slots: Iterable[int]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        # Both are made anew with every request, and held here, so that their identity tells requests apart.
        stay = {
            slot: held
            for slot, held in self._held.items()
            if held.request.args is args[slot] and held.request.output is outputs[slot]
        }
        self._forget([held for slot, held in self._held.items() if slot not in stay])
        self._held = stay | {slot: self._enter(slot, share_inputs) for slot in slots if slot not in stay}

    def _enter(self, slot: int, share_inputs: Mapping[str, Any]) -> _Held[State]:
        args, output = share_inputs["logits_processors_args"][slot], share_inputs["output_token_ids"][slot]
        prompt, params = share_inputs["prompt_token_ids"][slot], share_inputs["sampling_params"][slot]
        request = SlotRequest(args, prompt, output, params)
        before = self._left.pop(id(output), None)
        if before is not None and before.request.args == args:
            return _Held(request, before.state)
        return _Held(request, self._build(request))

    def _forget(self, left: list[_Held[State]]) -> None:
        for held in left:
            if self._remember and held.state is not None:
                self._left[id(held.request.output)] = held
        while len(self._left) > self._remember:
            self._left.popitem(last=False)


@dataclass(frozen=True)
class _Held(Generic[State]):
    request: SlotRequest
    state: State | None
