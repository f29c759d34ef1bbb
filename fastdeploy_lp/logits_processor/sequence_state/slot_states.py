"""Follows requests through slots for a processor that keeps something of its own for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """A state for every request that uses a processor; it goes with the request, and comes anew when it comes back.

    After `follow`, `states[i]` is about the request in slot `slots[i]`, whose logits are row `rows[i]`; int64 [n] both.
    """

    def __init__(self, build: Callable[[SlotRequest], State | None]) -> None:
        """`build` gives None for a request that the processor leaves alone."""
        self._build = build
        self._held: dict[int, _Held[State]] = {}
        self._last: tuple[bytes, bytes] | None = None
        self.slots = self.rows = np.empty(0, np.int64)
        self.states: list[State] = []

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
        self._read(share_inputs)
        active = ~stop_flags[:, 0]
        found = [(slot, state) for slot in sorted(self._held) if (state := self._held[slot].state) is not None]
        found = [(slot, state) for slot, state in found if active[slot]]
        self.slots = np.array([slot for slot, _ in found], np.int64)
        self.rows = np.cumsum(active, dtype=np.int64)[self.slots] - 1
        self.states = [state for _, state in found]
        return True

    def _read(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        using = share_inputs.get("using_slots")
        held: dict[int, _Held[State]] = {}
        for slot in range(len(args)) if using is None else using:
            known = self._held.get(slot)
            # Both are made anew with every request, and held here, so that their identity tells requests apart.
            if known is not None and known.request.args is args[slot] and known.request.output is outputs[slot]:
                held[slot] = known
                continue
            if args[slot]:
                prompt, params = share_inputs["prompt_token_ids"][slot], share_inputs["sampling_params"][slot]
                request = SlotRequest(args[slot], prompt, outputs[slot], params)
                held[slot] = _Held(request, self._build(request))
        self._held = held


@dataclass(frozen=True)
class _Held(Generic[State]):
    request: SlotRequest
    state: State | None
