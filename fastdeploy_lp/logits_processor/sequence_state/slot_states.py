"""A processor's state for each request, followed through slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fastdeploy_lp.request.sampling_params import SamplingParams

State = TypeVar("State")


@dataclass(frozen=True)
class SlotRequest:
    """The request in a slot, as a processor may read it.

    args: the arguments that are meant for the processor. prompt: its tokens. output: the live list of tokens generated
    so far. params: its other parameters.
    """

    args: Mapping[str, Any]
    prompt: list[int]
    output: list[int]
    params: SamplingParams


class SlotStates(Generic[State]):
    """A state for every request that uses a processor, made from all its tokens when the request first has a row.

    After `follow`, `states[i]` belongs to the request in slot `slots[i]`, with logits row `rows[i]`; both int64 [n].
    A preempted request returns with its output, from which its state is rebuilt. For a state that does not follow from
    the tokens alone, `remember` keeps that many states of requests that left.
    """

    def __init__(
        self,
        build: Callable[[SlotRequest], State | None],
        *,
        remember: int = 0,
        rewound: Callable[[State, SlotRequest], State | None] | None = None,
    ) -> None:
        """`build` returns None for a request that the processor leaves alone.

        rewound: returns the state of a request whose last tokens were taken back from its state before; `build` alone
        by default.
        """
        self._build = build
        self._rewound = rewound
        self._remember = remember
        self._held: dict[int, _Held[State]] = {}
        # By the id of the request's output list, which is kept alive here.
        self._left: OrderedDict[int, _Held[State]] = OrderedDict()
        self._last: tuple[bytes, bytes] | None = None
        self.slots = self.rows = np.empty(0, np.int64)
        self.states: list[State] = []

    def __iter__(self) -> Iterator[tuple[int, State]]:
        """Yields the row and the state of each request."""
        return zip(self.rows.tolist(), self.states, strict=True)

    def follow(self, share_inputs: Mapping[str, Any]) -> bool:
        """Reads the slots of a step; returns True if rows or states have changed since the last step.

        While the batch stays the same, it reads only two short arrays. A mapping without `args_versions`, which the
        chain adds, is read as a whole every time.
        """
        stop_flags, versions = share_inputs["stop_flags"], share_inputs.get("args_versions")
        now = None if versions is None else (stop_flags.tobytes(), versions.tobytes())
        if now is not None and now == self._last:
            return False
        self._last = now
        active = ~stop_flags[:, 0]
        # Without this field of the chain, the processor sees every request.
        using = share_inputs.get("using_slots")
        self._read(share_inputs, [slot for slot in np.flatnonzero(active).tolist() if using is None or slot in using])
        found = [(slot, state) for slot in sorted(self._held) if (state := self._held[slot].state) is not None]
        found = [(slot, state) for slot, state in found if active[slot]]
        self.slots = np.array([slot for slot, _ in found], np.int64)
        self.rows = np.cumsum(active, dtype=np.int64)[self.slots] - 1
        self.states = [state for _, state in found]
        return True

    def state_of(self, slot: int, output: Sequence[int]) -> State | None:
        """Returns the state of the request in the slot, whose live list of tokens is `output`; None if it has none."""
        held = self._held.get(slot)
        return held.state if held is not None and held.request.output is output else None

    def _read(self, share_inputs: Mapping[str, Any], slots: Iterable[int]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        prompts = share_inputs["prompt_token_ids"]
        # Both are new objects for every request and kept alive here, so their identity distinguishes requests.
        stay = {
            slot: held
            for slot, held in self._held.items()
            if held.request.args is args[slot] and held.request.output is outputs[slot]
        }
        left = {slot: held for slot, held in self._held.items() if slot not in stay}
        # Unlike a request that returns after a preemption, one that was rewound has another output.
        rewound = {
            slot: held
            for slot, held in left.items()
            if held.request.prompt is prompts[slot] and held.request.output is not outputs[slot]
        }
        self._forget([held for slot, held in left.items() if slot not in rewound])
        entered = {slot: self._enter(slot, share_inputs, rewound.get(slot)) for slot in slots if slot not in stay}
        self._held = stay | rewound | entered

    def _enter(self, slot: int, share_inputs: Mapping[str, Any], rewound: _Held[State] | None) -> _Held[State]:
        args, output = share_inputs["logits_processors_args"][slot], share_inputs["output_token_ids"][slot]
        prompt, params = share_inputs["prompt_token_ids"][slot], share_inputs["sampling_params"][slot]
        request = SlotRequest(args, prompt, output, params)
        if rewound is not None and rewound.state is not None and self._rewound is not None:
            return _Held(request, self._rewound(rewound.state, request))
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
