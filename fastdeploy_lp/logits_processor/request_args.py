"""Checks what a request says about logits processors against the declared ones, in the API process."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from fastdeploy_lp.logits_processor.author_code import AuthorCall, NotInTimeError, Outcome
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.logits_processor.phrase import PHRASES, VOCAB_SIZE, Encode, PhraseEncoder
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.sendable import require_sendable
from fastdeploy_lp.sampling_params import SamplingParams

FLAT, EXTRA, BIAS, NAMED = "logits_processors_args", "extra_args", "logit_bias", "logits_processors"
SHADOW = "logits_processors_shadow"

Result = TypeVar("Result")
Checks = Generator[AuthorCall, Outcome, Result]
"""A check that yields each call of a processor's own code, is sent its outcome, and returns its result."""


class RequestArgsValidator:
    """Turns a request's forms of selection (flat arguments, named processors) into one validated `Selection`.

    What a processor's own check raises refuses the request; an error that is no ValueError is its cause.

    `encode` tokenizes the arguments that are phrases; without it they can be given as token ids only. `shadow` names
    the processors that run in shadow for every request.
    """

    def __init__(
        self,
        declared: Sequence[DeclaredProcessor],
        vocab_size: int,
        encode: Encode | None = None,
        *,
        shadow: Sequence[str] = (),
    ) -> None:
        self._declared = {processor.name: processor for processor in declared}
        self._always_in_shadow = tuple(shadow)
        self._flat = [processor for processor in declared if not processor.dialect.by_name_only]
        self._known = sorted({name for processor in self._flat for name in processor.argument_names})
        # A processor without Params may read any argument, so none can be called unknown.
        self._open = any(processor.params_model is None for processor in self._flat)
        self._context = {VOCAB_SIZE: vocab_size, PHRASES: PhraseEncoder(encode) if encode is not None else None}

    def validate(self, params: SamplingParams) -> Selection:
        """The request's choice, its arguments with their types settled; raises RequestArgsError."""
        return run_here(self.checks(params))

    def checks(self, params: SamplingParams) -> Checks[Selection]:
        """The steps of `validate`, for a caller that runs processors' own code elsewhere.

        Raises NotInTimeError if that is an outcome that it is sent.
        """
        flat = yield from self._flat_args(params)
        if params.logits_processors is None:
            selection = Selection(flat=flat)
        elif flat:
            path = next(field for field in (FLAT, EXTRA, BIAS) if getattr(params, field))
            raise RequestArgsError(path, f"cannot stand beside {NAMED}; give every processor its own params there")
        else:
            selection = yield from self._named_selection(params.logits_processors)
        yield from self._ask_processors(params, selection)
        return self._with_shadows(selection, self._wanted_in_shadow(params, selection))

    def _flat_args(self, params: SamplingParams) -> Checks[dict[str, Any]]:
        """The arguments of all flat fields together, settled by the processors that know them."""
        paths: dict[str, tuple[str, ...]] = {}
        given: dict[str, Any] = {}
        bias = {BIAS: params.logit_bias} if params.logit_bias else {}
        for field, args in ((FLAT, params.logits_processors_args), (EXTRA, params.extra_args), (None, bias)):
            for name, value in (args or {}).items():
                path = (field, str(name)) if field else (str(name),)
                if not isinstance(name, str):
                    raise RequestArgsError(".".join(path), "argument names are strings")
                if name in given:
                    raise RequestArgsError(".".join(path), "this argument is given twice, in two fields of the request")
                # OpenAI's own field is meant for the builtin; one that knows other arguments would not look at it.
                if name not in self._known and (not self._open or field is None):
                    raise RequestArgsError(".".join(path), self._unknown_argument())
                require_sendable(value, ".".join(path))
                given[name], paths[name] = value, path
        return (yield from self._settle_flat(given, paths))

    def _settle_flat(self, given: dict[str, Any], paths: Mapping[str, tuple[str, ...]]) -> Checks[dict[str, Any]]:
        settled = dict(given)
        for processor in self._flat:
            own = {name: given[name] for name in given if name in processor.argument_names}
            if own and processor.params_model is not None:
                # An argument that is missing, and a rule between several, belong where the others came from.
                field = next(iter(paths[name] for name in own))[:-1]
                work = partial(_settle, processor.params_model, own, self._context, field, paths)
                settled |= yield from _call(processor, work)
        return settled

    def _named_selection(self, chosen: Mapping[str, Any] | Sequence[Any]) -> Checks[Selection]:
        named: dict[str, dict[str, Any]] = {}
        for entry in _entries(chosen):
            processor = self._declared.get(entry.name)
            if processor is None:
                raise RequestArgsError(".".join(entry.name_path), self._unknown_name(entry.name))
            if entry.name in named:
                reason = f"{entry.name} is named twice; the server can declare it a second time under an alias"
                raise RequestArgsError(".".join(entry.name_path), reason)
            named[entry.name] = yield from self._settle_named(processor, entry.params, entry.params_path)
        order = tuple(named)
        declared_order = tuple(name for name in self._declared if name in named)
        # Only a list has an order; the keys of an object have none that a client could rely on.
        own_order = not isinstance(chosen, Mapping) and order != declared_order
        return Selection(named=named, order=order if own_order else None)

    def _wanted_in_shadow(self, params: SamplingParams, selection: Selection) -> list[str]:
        """The names that the request has marked, and those that the operator has."""
        wanted = [entry.name for entry in _entries(params.logits_processors or {}) if entry.shadow]
        for index, name in enumerate(params.logits_processors_shadow or []):
            path = f"{SHADOW}.{index}"
            if not isinstance(name, str):
                raise RequestArgsError(path, "processor names are strings")
            if name not in self._declared:
                raise RequestArgsError(path, self._unknown_name(name))
            if not self._reaches(self._declared[name], selection):
                raise RequestArgsError(path, f"this request does not use {name}; name it in {NAMED}, too")
            wanted.append(name)
        always = [name for name in self._always_in_shadow if self._reaches(self._declared[name], selection)]
        return [*wanted, *always]

    def _reaches(self, processor: DeclaredProcessor, selection: Selection) -> bool:
        """Whether the processor may get to see the request."""
        if processor.dialect.by_name_only:
            return processor.is_used_by(selection)
        return not processor.leaves_alone(selection)

    def _with_shadows(self, selection: Selection, wanted: Sequence[str]) -> Selection:
        """The same choice with the wanted ones out of the chain."""
        if not wanted:
            return selection
        shadow = tuple(name for name in self._declared if name in wanted)
        order = None if selection.order is None else tuple(name for name in selection.order if name not in shadow)
        if order == tuple(name for name in self._declared if name in (order or ())):
            order = None
        return msgspec.structs.replace(selection, order=order, shadow=shadow)

    def _settle_named(
        self, processor: DeclaredProcessor, params: dict[str, Any], path: tuple[str, ...]
    ) -> Checks[dict[str, Any]]:
        require_sendable(params, ".".join(path))
        if processor.params_model is None:
            return params
        for name in params:
            if name not in processor.argument_names:
                known = ", ".join(sorted(processor.argument_names)) or "none"
                raise RequestArgsError(
                    ".".join((*path, name)), f"{processor.name} takes no such argument; known: {known}"
                )
        work = partial(_settle, processor.params_model, params, self._context, path)
        return (yield from _call(processor, work))

    def _ask_processors(self, params: SamplingParams, selection: Selection) -> Checks[None]:
        for processor in self._declared.values():
            if not self._reaches(processor, selection):
                continue
            seen = msgspec.structs.replace(params, extra_args=dict(selection.args_for(processor.name)) or None)
            try:
                yield from _call(processor, partial(processor.validate, seen))
            except (NotInTimeError, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                path = FLAT if selection.named is None else f"{NAMED}.{processor.name}"
                expected = isinstance(error, ValueError)
                reason = str(error) if expected else f"{type(error).__name__}: {error}"
                raise RequestArgsError(path, f"{processor.name}: {reason}") from (None if expected else error)

    def _unknown_argument(self) -> str:
        if not self._declared:
            return "no logits processors are declared; start the server with --logits-processors"
        names, known = ", ".join(self._declared), ", ".join(self._known) or "none"
        return f"no declared logits processor ({names}) takes this argument; known arguments: {known}"

    def _unknown_name(self, name: str) -> str:
        if not self._declared:
            return f"{name!r} is not declared; start the server with --logits-processors"
        close = difflib.get_close_matches(name, self._declared, n=1)
        guess = f"; did you mean {close[0]}?" if close else ""
        return f"no logits processor of the name {name!r} is declared; declared are {', '.join(self._declared)}{guess}"


def run_here(checks: Checks[Result]) -> Result:
    """The result of checks whose calls are all made in this thread."""
    try:
        call = next(checks)
        while True:
            call = checks.send(call.outcome())
    except StopIteration as end:
        result: Result = end.value
        return result


def _call(processor: DeclaredProcessor, work: Callable[[], Result]) -> Checks[Result]:
    """The result of a check by the processor; that of a builtin one is ours and runs here."""
    if not processor.checks_with_own_code:
        return work()
    outcome = yield AuthorCall(processor.name, work)
    if isinstance(outcome.error, GeneratorExit):  # not the end of this generator
        raise RuntimeError("GeneratorExit") from outcome.error
    result: Result = outcome.result()
    return result


class _Entry(NamedTuple):
    """One named processor of a request, where in the request its name and params stand, and whether it is in shadow."""

    name: str
    params: dict[str, Any]
    name_path: tuple[str, ...]
    params_path: tuple[str, ...]
    shadow: bool = False


def _entries(chosen: Mapping[str, Any] | Sequence[Any]) -> list[_Entry]:
    """Either form as entries; raises RequestArgsError for a wrong shape."""
    if isinstance(chosen, Mapping):
        entries = [_Entry(name, params, (NAMED, str(name)), (NAMED, str(name))) for name, params in chosen.items()]
    else:
        entries = [_list_entry(entry, index) for index, entry in enumerate(chosen)]
    for entry in entries:
        if not isinstance(entry.name, str):
            raise RequestArgsError(".".join(entry.name_path), "processor names are strings")
        if not isinstance(entry.params, dict):
            kind = type(entry.params).__name__
            raise RequestArgsError(".".join(entry.params_path), f"must be an object of arguments, not {kind}")
    return entries


def _list_entry(entry: Any, index: int) -> _Entry:
    path = (NAMED, str(index))
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise RequestArgsError(".".join(path), 'must read {"name": "…", "params": {…}}')
    for key in entry:
        if key not in ("name", "params", "shadow"):
            raise RequestArgsError(".".join((*path, str(key))), "is unknown here; an entry has name, params and shadow")
    shadow = entry.get("shadow")
    if not isinstance(shadow, bool | None):
        raise RequestArgsError(".".join((*path, "shadow")), f"must be true or false, not {shadow!r}")
    params = {} if entry.get("params") is None else entry["params"]
    return _Entry(entry["name"], params, (*path, "name"), (*path, "params"), bool(shadow))


def _settle(
    model: type[BaseModel],
    args: dict[str, Any],
    context: dict[str, Any],
    prefix: tuple[str, ...],
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """The arguments as `model` reads them.

    An error is about an argument at its path in `paths`, or else behind `prefix`.
    """
    try:
        checked = model.model_validate(args, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = [str(part) for part in first["loc"] if part != "[key]"] or [next(iter(args), "")]
        path = (paths or {}).get(location[0], (*prefix, location[0]))
        where = ".".join((*path, *location[1:]))
        raise RequestArgsError(where, first["msg"].removeprefix("Value error, ")) from None
    except BaseException as error:  # pydantic passes on what an author's validator raises
        raise RequestArgsError(".".join(prefix), f"{type(error).__name__}: {error}") from error
    settled: dict[str, Any] = checked.model_dump(by_alias=True, exclude_unset=True)
    # A default that had to be read, as a phrase has, is not what the model's author wrote: the worker gets it as well.
    read = {name for name, field in model.model_fields.items() if field.validate_default}
    return settled | checked.model_dump(by_alias=True, include=read)
