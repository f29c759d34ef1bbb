"""The forms in which a request passes arguments, in flat fields or by name of a processor, and their values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.errors import RequestArgsError, contained, described
from fastdeploy_lp.request.limits import MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_VALUES
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.suggestion import did_you_mean

Entering = Callable[[DeclaredProcessor, str | None], None]
"""Called with each processor whose check of a request begins, and with the JSON path that it checks."""

FLAT, EXTRA, BIAS = "logits_processors_args", "extra_args", "logit_bias"
NAMED = "logits_processors"
KEYS = ("name", "params", "when", "shadow")


def unwatched(processor: DeclaredProcessor, path: str | None) -> None:
    """Does nothing: the default `Entering`."""


@dataclass
class FlatArgs:
    """A request's flat arguments by name, and their JSON paths."""

    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """Fields of the request that hold them, each once."""
        return list(dict.fromkeys(path[0] for path in self.paths.values()))


class FlatArgsReader:
    """Reads the flat fields of requests and checks them against the processors that see flat arguments.

    declared: the chain. context: for the `Params` models. shadow: names of processors that run in shadow for every
    request; OpenAI's `logit_bias` is for the first processor that is not one of them.
    """

    def __init__(
        self, declared: Sequence[DeclaredProcessor], context: dict[str, Any], *, shadow: Collection[str] = ()
    ) -> None:
        self._declared = declared
        self._seeing = [processor for processor in declared if not processor.dialect.by_name_only]
        self._shadow = frozenset(shadow)
        self._bias_takers = [processor for processor in self._seeing if _knows(processor, BIAS)]
        self._context = context

    def read(self, params: SamplingParams) -> FlatArgs:
        """Returns the arguments of all flat fields as they were sent; raises RequestArgsError."""
        args = FlatArgs()
        bias = {BIAS: params.logit_bias} if params.logit_bias else {}
        for source, given in ((FLAT, params.logits_processors_args), (EXTRA, params.extra_args), (None, bias)):
            for name, value in (given or {}).items():
                path = (source, str(name)) if source else (str(name),)
                if not isinstance(name, str):
                    raise RequestArgsError(".".join(path), "argument names are strings")
                if name in args.values:
                    raise RequestArgsError(".".join(path), "this argument is given twice, in two fields of the request")
                # OpenAI's field is meant for the builtin; a processor that accepts any argument would not read it.
                takers = self._seeing if source else self._bias_takers
                if not any(processor.takes(name) for processor in takers):
                    raise RequestArgsError(".".join(path), self._unknown(name))
                require_sendable(value, ".".join(path))
                args.values[name], args.paths[name] = value, path
        return args

    def hidden(self, args: FlatArgs) -> dict[str, tuple[str, ...]]:
        """Returns the names of arguments that a processor does not see, by the processor's name."""
        if not args.values:
            return {}
        # Flat arguments are not meant for these, and would only reach their constructors.
        hidden = {
            processor.name: tuple(args.values)
            for processor in self._declared
            if processor.dialect.by_name_only and processor.mandatory
        }
        if args.paths.get(BIAS) == (BIAS,):
            # Processors in shadow see it too: they change nothing, so the bias is not added twice.
            in_chain = [each for each in self._bias_takers if each.name not in self._shadow]
            others = [each for each in self._seeing if each.takes(BIAS) and each.name not in self._shadow]
            hidden |= {each.name: (BIAS,) for each in others if each is not next(iter(in_chain), None)}
        return hidden

    def settled(self, args: FlatArgs, entering: Entering) -> dict[str, Any]:
        """Returns the arguments as the `Params` of their processors read them; raises RequestArgsError."""
        settled = dict(args.values)
        for processor in self._seeing:
            own = {name: value for name, value in args.values.items() if name in processor.argument_names}
            if own and processor.params_model is not None:
                # An error about a missing argument or several arguments gets the path of the field of the others.
                source = args.paths[next(iter(own))][:-1]
                entering(processor, ".".join(args.paths[next(iter(own))]))
                settled |= settled_args(processor.params_model, own, self._context, source, args.paths)
        return settled

    def _unknown(self, argument: str) -> str:
        if not self._declared:
            return "no logits processors are declared; start the server with --logits-processors"
        names = ", ".join(processor.name for processor in self._declared)
        known = sorted({name for processor in self._seeing for name in processor.argument_names})
        reason = (
            f"no declared logits processor ({names}) takes this argument{did_you_mean(argument, known)}; "
            f"known arguments: {', '.join(known) or 'none'}"
        )
        opaque = [processor.name for processor in self._seeing if processor.params_model is None]
        if not opaque:
            return reason
        return f"{reason}, and those that the code of {', '.join(opaque)} mentions (accepts_any_args = True takes any)"


def _knows(processor: DeclaredProcessor, argument: str) -> bool:
    """Returns True if its `Params` or its code names the argument."""
    return argument in processor.argument_names or argument in processor.read_names


class RequestedPlace(NamedTuple):
    """A name in a request's order, and its JSON path there."""

    name: str
    path: str


class MandatoryOrder:
    """Orders names as a request asks, with every mandatory processor between the names it was declared between."""

    def __init__(self, declared: Sequence[DeclaredProcessor]) -> None:
        self._mandatory = [processor.name for processor in declared if processor.mandatory]
        # Odd numbers for mandatory processors, even numbers for the processors before, between and after them.
        self._section: dict[str, int] = {}
        for processor in declared:
            passed = [name for name in self._mandatory if name in self._section]
            self._section[processor.name] = 2 * len(passed) + processor.mandatory

    def complete(self, requested: Sequence[RequestedPlace]) -> tuple[str, ...]:
        """Returns the requested order with the missing mandatory names added.

        Raises RequestArgsError for a name that was declared on the other side of a mandatory processor.
        """
        names = [place.name for place in requested]
        absent = [name for name in self._mandatory if name not in names]
        # Stable: names of one section stay as requested.
        allowed = tuple(sorted([*names, *absent], key=self._section.__getitem__))
        for before, after in pairwise(requested):
            if self._section[after.name] < self._section[before.name]:
                raise RequestArgsError(after.path, self._reason(before.name, after.name, allowed))
        return allowed

    def _reason(self, before: str, after: str, allowed: Sequence[str]) -> str:
        passed = self._mandatory[self._section[after] // 2]
        place = f"{passed} is mandatory and keeps its declared place"
        return f"{after} cannot run after {before}: {place}; an order that is allowed is {', '.join(allowed)}"


class NamedEntry(NamedTuple):
    """One named processor of a request, with the JSON paths of the entry, its name and its params.

    when: the part of the output in which it works, as it was sent; None for all of it.
    """

    name: str
    params: dict[str, Any]
    path: tuple[str, ...]
    name_path: tuple[str, ...]
    params_path: tuple[str, ...]
    shadow: bool = False
    when: Any = None

    @property
    def when_path(self) -> str:
        """JSON path of its phase."""
        return ".".join((*self.path, "when"))


def named_entries(chosen: Mapping[str, Any] | Sequence[Any]) -> list[NamedEntry]:
    """Returns the entries of either form; raises RequestArgsError for a wrong shape."""
    if isinstance(chosen, Mapping):
        paths = [(NAMED, str(name)) for name in chosen]
        items = zip(chosen.items(), paths, strict=True)
        entries = [NamedEntry(name, params, path, path, path) for (name, params), path in items]
    else:
        entries = [_list_entry(entry, index) for index, entry in enumerate(chosen)]
    for entry in entries:
        if not isinstance(entry.name, str):
            raise RequestArgsError(".".join(entry.name_path), "processor names are strings")
        if not isinstance(entry.params, dict):
            kind = type(entry.params).__name__
            raise RequestArgsError(".".join(entry.params_path), f"must be an object of arguments, not {kind}")
    return entries


def _list_entry(entry: Any, index: int) -> NamedEntry:
    path = (NAMED, str(index))
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise RequestArgsError(".".join(path), 'must read {"name": "…", "params": {…}}')
    for key in entry:
        if key not in KEYS:
            reason = f"is unknown here; an entry has {', '.join(KEYS[:-1])} and {KEYS[-1]}"
            raise RequestArgsError(".".join((*path, str(key))), reason)
    shadow = entry.get("shadow")
    if not isinstance(shadow, bool | None):
        raise RequestArgsError(".".join((*path, "shadow")), f"must be true or false, not {shadow!r}")
    params = {} if entry.get("params") is None else entry["params"]
    return NamedEntry(entry["name"], params, path, (*path, "name"), (*path, "params"), bool(shadow), entry.get("when"))


def settled_args(
    model: type[BaseModel],
    args: dict[str, Any],
    context: dict[str, Any],
    prefix: tuple[str, ...],
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """Returns the arguments as `model` reads them.

    Raises RequestArgsError with the argument's path in `paths`, or else with `prefix` and its name.
    """
    try:
        checked = model.model_validate(args, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = [str(part) for part in first["loc"] if part != "[key]"] or [next(iter(args), "")]
        path = (paths or {}).get(location[0], (*prefix, location[0]))
        where = ".".join((*path, *location[1:]))
        raise RequestArgsError(where, first["msg"].removeprefix("Value error, ")) from None
    except BaseException as error:  # pydantic passes on exceptions of an author's validator
        raise RequestArgsError(".".join(prefix), described(contained(error))) from error
    settled: dict[str, Any] = checked.model_dump(by_alias=True, exclude_unset=True)
    # A validated default, such as a phrase, differs from the author's value: the worker gets it as well.
    read = {name for name, field in model.model_fields.items() if field.validate_default}
    return settled | checked.model_dump(by_alias=True, include=read)


def require_sendable(value: object, path: str) -> None:
    """Raises RequestArgsError with the JSON path of the first part that cannot be sent."""
    _Check(path).value(value, path, 0)


class _Check:
    """Checks and counts the values of one argument."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._left = MAX_ARGUMENT_VALUES

    def value(self, value: object, path: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise RequestArgsError(self._path, f"holds more than {MAX_ARGUMENT_VALUES} values")
        if depth > MAX_ARGUMENT_DEPTH:
            raise RequestArgsError(path, f"nested more than {MAX_ARGUMENT_DEPTH} levels deep")
        if isinstance(value, dict):
            self._all(value.items(), path, depth)
            for key in value:
                self.value(key, path, depth + 1)
        elif isinstance(value, (list, tuple)):
            self._all(enumerate(value), path, depth)
        elif isinstance(value, str):
            _require_unicode(value, path)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise RequestArgsError(path, "an integer of more than 64 bits")
        elif value is not None and type(value) not in (bool, int, float):
            raise RequestArgsError(path, f"{type(value).__name__} is no JSON value")

    def _all(self, items: Iterable[tuple[object, object]], path: str, depth: int) -> None:
        for key, value in items:
            self.value(value, f"{path}.{key}", depth + 1)


def _require_unicode(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestArgsError(path, f"no valid Unicode: {error.reason}") from None
