"""A declared processor, loaded from the operator's SPEC, and a request's selection among them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import BaseModel

from fastdeploy_lp.logits_processor import vllm_mrv2, vllm_v1
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.code_names import names_in_code
from fastdeploy_lp.logits_processor.dialects import Dialect
from fastdeploy_lp.logits_processor.errors import contained, described
from fastdeploy_lp.logits_processor.late_values import PREPARED, LateValue
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.stages import DRAW, Stage, stage_of
from fastdeploy_lp.request.phase import Phase

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
    from fastdeploy_lp.request.sampling_params import SamplingParams


MAX_REWIND_NAME = "max_rewind"

BROUGHT = "upload"
"""Source of a processor that a client has uploaded."""

# Packages whose functions in a schema are not an author's code.
_OURS = ("fastdeploy_lp", "pydantic", "pydantic_core")


def runs_authors_code(model: type[BaseModel]) -> bool:
    """Returns True if validation or dumping calls code outside pydantic and this package: functions, hooks, methods.

    Regular expressions of Python's `re` count as well: their run time has no bound.
    """
    own_bases = model.__mro__[: model.__mro__.index(BaseModel)]
    if any(name in vars(base) for base in own_bases for name in ("model_validate", "model_dump")):
        return True
    return any(_is_code(node) for node in _nodes(model.__pydantic_core_schema__, set()))


def _nodes(part: Any, seen: set[int]) -> Iterator[Mapping[str, Any]]:
    """Yields every mapping of a schema, each once."""
    if isinstance(part, Mapping):
        if id(part) in seen:
            return
        seen.add(id(part))
        yield part
        part = tuple(part.values())
    if isinstance(part, list | tuple):
        for value in part:
            yield from _nodes(value, seen)


def _is_code(node: Mapping[str, Any]) -> bool:
    if node.get("custom_init") or node.get("post_init") or node.get("computed_fields"):
        return True
    if node.get("regex_engine") == "python-re":
        return True
    return any(callable(value) and _may_be_code(key, value) and not _is_ours(value) for key, value in node.items())


def _may_be_code(key: str, value: Any) -> bool:
    """Returns True for a function, and for a class that is called; other classes in a schema are value types."""
    return key in ("function", "missing") or not isinstance(value, type)


def _is_ours(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in _OURS


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


@dataclass(frozen=True)
class DeclaredProcessor:
    """One entry of the chain.

    name: its name in requests, metrics and errors. spec: the SPEC that it was loaded from. source: "builtin", "module",
    "entry point", "object", "file" or "upload". found: the class, the plugin dict, or the module. mandatory: every
    request uses it, and no request is served without it. claimed: flat arguments in the `Params` of declared
    processors; they do not belong to a processor without `Params`.
    """

    name: str
    spec: str
    source: str
    found: Any
    dialect: Dialect
    mandatory: bool = False
    claimed: frozenset[str] = frozenset()

    @property
    def given_as_object(self) -> bool:
        """True if the caller of `LLM` passed the class, so that its SPEC need not lead to it again."""
        return self.source == "object"

    @cached_property
    def params_model(self) -> type[BaseModel] | None:
        """Pydantic model of its arguments, None if the server does not know them."""
        return self.dialect.params_model(self.found)

    @cached_property
    def output_model(self) -> type[BaseModel] | None:
        """Pydantic model of the values that it emits, None if it declares none."""
        found = getattr(self.dialect.class_of(self.found), "Output", None)
        return found if isinstance(found, type) and issubclass(found, BaseModel) else None

    @cached_property
    def stage(self) -> Stage:
        """When it runs in a step: "logits", "filtered" or "draw"."""
        return stage_of(self.dialect.class_of(self.found))

    @cached_property
    def max_rewind(self) -> int:
        """The most tokens that it may take back at once; 0 for none."""
        return int(getattr(self.dialect.class_of(self.found), MAX_REWIND_NAME, 0))

    def rewind_for(self, args: Mapping[str, Any]) -> int:
        """Returns the most tokens that it may take back at once from a request with these arguments.

        Raises the errors of its class.
        """
        ask = getattr(self.dialect.class_of(self.found), "rewind_for", None)
        return self.max_rewind if ask is None else max(0, min(index(ask(args)), self.max_rewind))

    @cached_property
    def late_value(self) -> LateValue | None:
        """Bounds of its `prepare`, None if it has none."""
        return self.dialect.late_value(self.found)

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """Names of the arguments in `params_model`."""
        if self.params_model is None:
            return frozenset()
        return frozenset(field.alias or name for name, field in self.params_model.model_fields.items())

    @cached_property
    def accepts_any_args(self) -> bool:
        """True if a class without `Params` declares that it reads arguments whose names are not in its code."""
        return getattr(self.dialect.class_of(self.found), "accepts_any_args", False) is True

    @cached_property
    def read_names(self) -> frozenset[str]:
        """Names that the code of a class without `Params` mentions."""
        return frozenset() if self.params_model else names_in_code(self.dialect.class_of(self.found))

    def takes(self, argument: str) -> bool:
        """Returns True for an argument that a request may pass to it."""
        if self.params_model is not None:
            return argument in self.argument_names
        return self.accepts_any_args or argument in self.read_names

    @cached_property
    def checks_with_own_code(self) -> bool:
        """True if the check of a request may run an author's code, in `Params` or a method."""
        if self.source == "builtin":
            return False
        return self.checks_requests or (self.params_model is not None and runs_authors_code(self.params_model))

    @cached_property
    def checks_requests(self) -> bool:
        """True if it may refuse a request whose arguments its `Params` accept."""
        return self.dialect.tries_instances or _overrides_check(self.dialect.class_of(self.found))

    @property
    def description(self) -> str:
        """First paragraph of its docstring."""
        # The class's own docstring, without inheritance: a base's docstring describes the interface.
        text = inspect.cleandoc(self.dialect.class_of(self.found).__doc__ or "")
        return " ".join(text.partition("\n\n")[0].split())

    def build(self, fd_config: FDConfig) -> LogitsProcessor:
        """Returns a native processor for the chain; raises RuntimeError with its name if its constructor fails."""
        try:
            return self.dialect.build(self.found, fd_config)
        except BaseException as error:
            reason = described(contained(error))
            raise RuntimeError(f"logits processor {self.name} cannot be built: {reason}") from error

    def validate(self, sampling_params: SamplingParams, facts: ModelFacts) -> None:
        """Raises ValueError if the processor refuses the request; an author's code may raise any exception."""
        self.dialect.validate(self.found, sampling_params, facts)

    def is_meant_for(self, selection: Selection) -> bool:
        """Returns True if the request names this processor, or passes an argument that belongs to it.

        Arguments that a class without `Params` takes belong to it unless another's `Params` claim them. No request is
        meant for a processor in shadow; every request is meant for a mandatory one of a dialect without flat arguments,
        and for those that the operator imposes on it.
        """
        decided = selection.decides(self.name)
        if decided is not None:
            return decided
        if self.dialect.by_name_only and self.mandatory:
            return True
        if selection.named is not None:
            return self.name in selection.named
        return not self.dialect.by_name_only and any(map(self._owns, selection.args_for(self.name)))

    def is_used_by(self, selection: Selection) -> bool:
        """Returns True if the processor is mandatory, or the request is meant for it."""
        return self.mandatory or self.is_meant_for(selection)

    def draws_for(self, selection: Selection) -> bool:
        """Returns True if the processor chooses the tokens of a request with a temperature above 0."""
        if self.stage != DRAW or self.leaves_alone(selection):
            return False
        return self.is_meant_for(selection) or not getattr(self.found, "only_with_args", False)

    def leaves_alone(self, selection: Selection) -> bool:
        """Returns True if the processor must not see the request.

        The request names others or wants it in shadow, or the operator withholds it from the client.
        """
        decided = selection.decides(self.name)
        if decided is not None:
            return not decided
        return selection.named is not None and self.name not in selection.named and not self.mandatory

    def _owns(self, argument: str) -> bool:
        return self.takes(argument) and (self.params_model is not None or argument not in self.claimed)


def _overrides_check(cls: type) -> bool:
    """Returns True if the class has a `validate_params` that is not from this package's base classes."""
    owner = next((base for base in cls.__mro__ if "validate_params" in vars(base)), None)
    return owner is not None and owner not in (LogitsProcessor, vllm_v1.LogitsProcessor, vllm_mrv2.LogitsProcessor)
