"""Processors that clients have uploaded, in a chain that was built without them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping

from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.registry import MAX_BROUGHT, load_brought


class BroughtProcessors:
    """Declares processors when a request brings them, and forgets the least recently used of more than MAX_BROUGHT.

    declared: of the chain, which this class changes. drop_unused: forgets the named processors that are not in use, and
    returns the others.
    """

    def __init__(
        self, declared: dict[str, DeclaredProcessor], drop_unused: Callable[[Collection[str]], set[str]]
    ) -> None:
        self._declared = declared
        self._drop_unused = drop_unused
        self._known: OrderedDict[str, None] = OrderedDict()

    def declare(self, brought: Mapping[str, str]) -> Iterator[DeclaredProcessor]:
        """Declares processors, SPECs by name, and yields the new ones.

        Raises LogitsProcessorSpecError for one whose file is gone.
        """
        for name, spec in brought.items():
            if name not in self._declared:
                self._declared[name] = load_brought(spec)
                self._known[name] = None
                yield self._declared[name]
            self._known.move_to_end(name)
        if brought and len(self._known) > MAX_BROUGHT:
            self._forget(set(list(self._known)[: len(self._known) - MAX_BROUGHT]))

    def _forget(self, names: set[str]) -> None:
        for name in names - self._drop_unused(names):
            del self._known[name], self._declared[name]
