"""The operator's part of a request's selection of logits processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.stages import DRAW


class Imposed(msgspec.Struct, frozen=True):
    """Processors that the operator sets for a request, and processors that do not exist for its client.

    forced: arguments by name of processors that run whatever the request asks for. default: arguments by name of
    processors that run unless the request names processors or passes one of their arguments; one that draws also yields
    to the request's own. withheld: names of processors that the request cannot use. max_tokens: at most this many
    tokens for each completion. brought: SPECs by name of processors that exist for this client only, which has uploaded
    them.

    Arguments are those of a validated `Selection`.
    """

    forced: dict[str, dict[str, Any]] = {}
    default: dict[str, dict[str, Any]] = {}
    withheld: tuple[str, ...] = ()
    max_tokens: int | None = None
    brought: dict[str, str] = {}

    @property
    def secret(self) -> tuple[str, ...]:
        """Names that do not exist for the client."""
        return tuple(sorted({*self.withheld, *self.forced}))

    def on(self, selection: Selection, declared: Sequence[DeclaredProcessor]) -> Selection:
        """Returns a selection, validated without the secret processors, with the imposed ones.

        An imposed processor runs after all of the request's processors that are declared before it.
        """
        imposed = dict(self.forced)
        if selection.named is None:
            drawn = any(each.draws_for(selection) for each in declared)
            imposed |= {
                each.name: self.default[each.name]
                for each in declared
                if each.name in self.default
                and not any(map(each.takes, selection.flat))
                and not (drawn and each.stage == DRAW)
            }
        if not imposed and not self.secret:
            return selection
        names = [each.name for each in declared]
        order = selection.order
        if order is not None:
            order = _with_imposed(order, [name for name in names if name in imposed], names)
        return msgspec.structs.replace(selection, imposed=imposed, secret=self.secret, order=order)


NOTHING_IMPOSED = Imposed()


def _with_imposed(order: Sequence[str], imposed: Sequence[str], declared: Sequence[str]) -> tuple[str, ...]:
    places: Mapping[str, int] = {name: place for place, name in enumerate(declared)}
    found = [name for name in order if name not in imposed]
    for name in imposed:
        # Uploads run before, so that they cannot undo an imposed processor.
        before = [place for place, other in enumerate(found) if places.get(other, -1) < places[name]]
        found.insert(before[-1] + 1 if before else 0, name)
    return tuple(found)
