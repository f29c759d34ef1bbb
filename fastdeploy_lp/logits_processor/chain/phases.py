"""Phases of requests in slots: processors that see a request only in a part of its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastdeploy_lp.logits_processor.declared import Selection
from fastdeploy_lp.request.phase import PhasePosition


class Phased(Protocol):
    """A processor's place that can hide a slot from it."""

    def step_in(self, slot: int, selection: Selection) -> None:
        """Shows the request in the slot, as one that enters the slot with its output so far."""

    def step_out(self, slot: int) -> None:
        """Hides the request in the slot, as one that has left it."""


@dataclass(slots=True)
class _Bound:
    """A place that is bound to a phase of the request in a slot; `inside` is True while it sees the request."""

    place: Phased
    position: PhasePosition
    inside: bool = False


@dataclass(slots=True)
class _Request:
    selection: Selection
    bound: list[_Bound]
    num_read: int = 0


class Phases:
    """Follows the outputs of requests with phases, and lets processors step in and out; other requests cost nothing.

    token_bytes: returns the bytes of a token. changed: called with a slot after a processor has stepped in or out.
    `requests` has the requests by slot; a step calls `follow` while there are any.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], changed: Callable[[int], None]) -> None:
        self._token_bytes = token_bytes
        self._changed = changed
        self.requests: dict[int, _Request] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self.requests

    def enter(self, slot: int, selection: Selection, places: Iterable[tuple[str, Phased]]) -> None:
        """Registers a request in a slot, and hides it from the places, by name, that are bound to a phase."""
        bound = [_Bound(place, PhasePosition(selection.when[name])) for name, place in places if name in selection.when]
        for each in bound:
            each.place.step_out(slot)
        if bound:
            self.requests[slot] = _Request(selection, bound)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self.requests.pop(slot, None)

    def follow(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads the new tokens of the slots that have a row; called before each step that samples."""
        stop_flags, outputs = share_inputs["stop_flags"], share_inputs["output_token_ids"]
        for slot, request in self.requests.items():
            if not stop_flags[slot, 0]:
                self._read(slot, request, outputs[slot])

    def _read(self, slot: int, request: _Request, output: list[int]) -> None:
        new = [self._token_bytes(token) for token in output[request.num_read :]]
        request.num_read = len(output)
        moved = False
        for each in request.bound:
            for text in new:
                each.position.push(text)
            if each.position.inside == each.inside:
                continue
            moved, each.inside = True, each.position.inside
            if each.inside:
                each.place.step_in(slot, request.selection)
            else:
                each.place.step_out(slot)
        if moved:
            self._changed(slot)
