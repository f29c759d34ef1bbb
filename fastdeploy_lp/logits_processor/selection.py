"""One request's logits processors, their arguments and their order, as the worker receives them."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.logits_processor.late_values import PREPARED
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.request.phase import Phase


class Selection(msgspec.Struct, omit_defaults=True):
    """A request's validated selection.

    flat: arguments in FastDeploy's form, which every declared processor sees unless they are hidden from it.
    named: arguments by processor name; only these processors and mandatory ones see the request. None if the request
    names none.
    when: the part of the output in which a named processor sees the request, by its name; all of it for the others.
    order: the names in the request's order, mandatory ones included; None for the declared order.
    shadow: the names of processors that run in shadow: the chain runs only the others on the request.
    hidden: names of flat arguments that a processor does not see, by the processor's name.
    imposed: the operator's arguments by processor name; these processors see the request, with these arguments.
    secret: the names that do not exist for the client, or whose values came too late; those without imposed arguments
    leave the request alone.
    prepared: values of processors' `prepare`, by name.
    brought: SPECs by name of its processors that its client has uploaded; `order` then has all names.
    """

    flat: dict[str, Any] = {}
    named: dict[str, dict[str, Any]] | None = None
    when: dict[str, Phase] = {}
    order: tuple[str, ...] | None = None
    shadow: tuple[str, ...] = ()
    hidden: dict[str, tuple[str, ...]] = {}
    imposed: dict[str, dict[str, Any]] = {}
    secret: tuple[str, ...] = ()
    prepared: dict[str, Any] = {}
    brought: dict[str, str] = {}

    def in_shadow(self) -> Selection:
        """Returns the same selection as the processors in shadow see it."""
        return msgspec.structs.replace(self, shadow=())

    def args_for(self, name: str) -> ProcessorArgs:
        """Returns the arguments that the processor of that name sees in the chain."""
        args = self._args_for(name)
        if name in self.prepared and (name in self.imposed or name not in self.shadow):
            args[PREPARED] = self.prepared[name]
        return args

    def without(self, name: str) -> Selection:
        """Returns the selection without a processor, in the chain and in shadow."""
        shadow = tuple(each for each in self.shadow if each != name)
        order = None if self.order is None else tuple(each for each in self.order if each != name)
        return msgspec.structs.replace(self, shadow=shadow, order=order, secret=(*self.secret, name))

    def _args_for(self, name: str) -> ProcessorArgs:
        decided = self.decides(name)
        if decided is not None:
            return ProcessorArgs(self.imposed[name] if decided else {})
        if self.named is not None:
            return ProcessorArgs(self.named.get(name, {}))
        hidden = self.hidden.get(name, ())
        return ProcessorArgs({key: value for key, value in self.flat.items() if key not in hidden})

    def decides(self, name: str) -> bool | None:
        """Returns True if the operator imposes the processor, False if it is in shadow or secret, None otherwise.

        None leaves the decision to the processor's dialect and the request's arguments.
        """
        if name in self.imposed:
            return True
        return False if name in self.shadow or name in self.secret else None

    def forces(self, name: str) -> bool:
        """Returns True if the operator imposes the processor and the client must not learn of it."""
        return name in self.imposed and name in self.secret

    @property
    def all_args(self) -> ProcessorArgs:
        """All arguments of the request, for any processor."""
        if self.named is None:
            return ProcessorArgs(self.flat)
        return ProcessorArgs({name: value for params in self.named.values() for name, value in params.items()})
