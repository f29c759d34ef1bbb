"""Which logits processors one request uses, with what arguments and in what order; as the worker receives it."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs


class Selection(msgspec.Struct, omit_defaults=True):
    """A request's validated choice.

    flat: arguments that every declared processor sees, FastDeploy's form.
    named: arguments by processor name; only the named processors see the request. None when the request names none.
    order: the names in the order the request wants, None for the declared order.
    shadow: the names of processors that run in shadow: the chain leaves the request to the others.
    """

    flat: dict[str, Any] = {}
    named: dict[str, dict[str, Any]] | None = None
    order: tuple[str, ...] | None = None
    shadow: tuple[str, ...] = ()

    def in_shadow(self) -> Selection:
        """The same choice as the processors in shadow see it."""
        return msgspec.structs.replace(self, shadow=())

    def args_for(self, name: str) -> ProcessorArgs:
        """What the processor of that name gets to see in the chain."""
        if name in self.shadow:
            return ProcessorArgs()
        return ProcessorArgs(self.flat if self.named is None else self.named.get(name, {}))

    @property
    def all_args(self) -> ProcessorArgs:
        """Every argument of the request, whoever it is for."""
        if self.named is None:
            return ProcessorArgs(self.flat)
        return ProcessorArgs({name: value for params in self.named.values() for name, value in params.items()})
