"""What a builtin keeps of each request, following requests through slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fastdeploy_lp.sampling_params import SamplingParams

State = TypeVar("State")


@dataclass(frozen=True)
class SlotRequest:
    """A request that sits in a slot; `output` is the live list, which grows by each token before the next step."""

    args: Mapping[str, Any]
    prompt: list[int]
    output: list[int]
    params: SamplingParams | None


@dataclass(frozen=True)
class _Held(Generic[State]):
    args: Mapping[str, Any]
    output: list[int]
    state: State | None


class SlotStates(Generic[State]):
    """One state a request that uses the processor, made by `build` when the request enters a slot.

    `build` gives None for a request that wants nothing. It makes the state from all tokens that are there, since a
    request that was preempted comes back with its output. `remember`: so many states of requests that left their slots
    are kept for that case, where a state holds what the tokens do not tell.
    """

    def __init__(self, build: Callable[[SlotRequest], State | None], *, remember: int = 0) -> None:
        self._build = build
        self._remember = remember
        self._by_slot: dict[int, _Held[State]] = {}
        # By the identity of the output list, which is the request's own and is kept alive here.
        self._left: OrderedDict[int, _Held[State]] = OrderedDict()
        self._batch: tuple[bytes, bytes] | None = None
        self._found: list[tuple[int, State]] = []

    def follow(self, share_inputs: Mapping[str, Any]) -> list[tuple[int, State]]:
        """Row and state of every request that has a row this step and uses the processor; once a step.

        As long as rows and requests stay the list is the same object. It is not to be changed.
        """
        versions = share_inputs.get("args_versions")
        batch = None if versions is None else (share_inputs["stop_flags"].tobytes(), versions.tobytes())
        if batch is None or batch != self._batch:
            self._batch, self._found = batch, self._look(share_inputs)
        return self._found

    def _look(self, share_inputs: Mapping[str, Any]) -> list[tuple[int, State]]:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        # A mapping without the chain's own field shows every request to the processor.
        using = share_inputs.get("using_slots")
        self._drop_those_who_left(args, outputs)
        found: list[tuple[int, State]] = []
        for row, slot in enumerate(np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()):
            if using is not None and slot not in using:
                continue
            held = self._by_slot.get(slot) or self._enter(slot, share_inputs)
            if held.state is not None:
                found.append((row, held.state))
        return found

    def _enter(self, slot: int, share_inputs: Mapping[str, Any]) -> _Held[State]:
        args, output = share_inputs["logits_processors_args"][slot], share_inputs["output_token_ids"][slot]
        before = self._left.pop(id(output), None)
        if before is not None and before.args == args:
            held = _Held(args, output, before.state)
        else:
            prompt, params = share_inputs["prompt_token_ids"][slot], share_inputs["sampling_params"][slot]
            held = _Held(args, output, self._build(SlotRequest(args, prompt, output, params)))
        self._by_slot[slot] = held
        return held

    def _drop_those_who_left(self, args: list[Mapping[str, Any]], outputs: list[list[int]]) -> None:
        # Both are the slot's own objects: another request in the slot has others, whatever they hold.
        left = [
            slot
            for slot, held in self._by_slot.items()
            if held.output is not outputs[slot] or held.args is not args[slot]
        ]
        for slot in left:
            held = self._by_slot.pop(slot)
            if self._remember and held.state is not None:
                self._left[id(held.output)] = held
        while len(self._left) > self._remember:
            self._left.popitem(last=False)
