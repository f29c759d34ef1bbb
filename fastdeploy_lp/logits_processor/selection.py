"""Which logits processors one request uses, with what arguments and in what order; as the worker receives it."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs


class Selection(msgspec.Struct, omit_defaults=True):
    """A request's validated choice.

    flat: arguments that every declared processor sees, FastDeploy's form, unless they are hidden from it.
    named: arguments by processor name; only these processors and mandatory ones see the request. None when the request
    names none.
    order: the names in the order the request wants, mandatory ones included; None for the declared order.
    shadow: the names of processors that run in shadow: the chain leaves the request to the others.
    hidden: names of flat arguments that a processor does not see, by the processor's name.
    """

    flat: dict[str, Any] = {}
    named: dict[str, dict[str, Any]] | None = None
    order: tuple[str, ...] | None = None
    shadow: tuple[str, ...] = ()
    hidden: dict[str, tuple[str, ...]] = {}

    def in_shadow(self) -> Selection:
        """The same choice as the processors in shadow see it."""
        return msgspec.structs.replace(self, shadow=())

    def args_for(self, name: str) -> ProcessorArgs:
        """What the processor of that name gets to see in the chain."""
        if name in self.shadow:
            return ProcessorArgs()
        if self.named is not None:
            return ProcessorArgs(self.named.get(name, {}))
        hidden = self.hidden.get(name, ())
        return ProcessorArgs({key: value for key, value in self.flat.items() if key not in hidden})

    @property
    def all_args(self) -> ProcessorArgs:
        """Every argument of the request, whoever it is for."""
        if self.named is None:
            return ProcessorArgs(self.flat)
        return ProcessorArgs({name: value for params in self.named.values() for name, value in params.items()})
