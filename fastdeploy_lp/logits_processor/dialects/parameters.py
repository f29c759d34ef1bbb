"""Parameters of constructors and functions: JSON values from a request, and values that the server supplies."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from functools import lru_cache
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from fastdeploy_lp.logits_processor.actions import ACTIONS
from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
from fastdeploy_lp.logits_processor.dialects.torch_bridge import torch_device
from fastdeploy_lp.logits_processor.token_arguments import TOKEN_SCHEMA, in_vocabulary, integer_of

TOKENIZER = "tokenizer"
"""Supplied by the server for every parameter of this name, never by a request: from a name in a request, authors' code
would load a tokenizer from an arbitrary place."""

_SCALARS = (int, float, str, bool, type(None))
_LISTS = (list, Sequence, MutableSequence, Iterable, Collection)
_DICTS = (dict, Mapping, MutableMapping)
# Names of parameters without an annotation that no JSON value can fill.
_OBJECTS = frozenset({"model", "assistant_model"})


def supplied_by_server(name: str, facts: ModelFacts) -> Any:
    """Returns the server's value for a parameter of this name: a row of logits is a batch of one, on its device."""
    if name == "device":
        import torch

        return torch_device() if facts.on_device else torch.device("cpu")
    if name == TOKENIZER:
        if facts.tokenizer is None:
            raise ValueError("there is no tokenizer here")
        return facts.tokenizer
    return {"vocab_size": facts.vocab_size, "batch_size": 1}[name]


_SUPPLIED = frozenset({TOKENIZER, "device", "vocab_size", "batch_size"})


class RequestParameters:
    """Parameters of `target` after the first `skip`, sorted by their source.

    model: pydantic model of the parameters that a request may pass, None if `target` takes any keyword or has no
    signature. A request may pass a parameter whose annotation has a form that JSON can express, and one without an
    annotation. missing: one description for each required parameter that neither a request nor the server can pass.
    """

    def __init__(self, target: Callable[..., Any], skip: int = 0) -> None:
        self._supplied: dict[str, inspect.Parameter] = {}
        self.missing: list[str] = []
        self.model: type[BaseModel] | None = None
        try:
            parameters = list(inspect.signature(target).parameters.values())[skip:]
        except (TypeError, ValueError):
            # Classes written in C may have no signature; only their constructor can check arguments.
            return
        fields: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if skip and parameter.name == ACTIONS:
                # A function's verbs come from the chain; a constructor may have an argument of this name.
                continue
            if parameter.name in _SUPPLIED:
                self._supplied[parameter.name] = parameter
            if parameter.name != TOKENIZER:
                self._add(parameter, target, fields)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
            self.model = create_model(getattr(target, "__name__", "Parameters"), __config__=config, **fields)

    def _add(self, parameter: inspect.Parameter, target: Callable[..., Any], fields: dict[str, Any]) -> None:
        annotation = _evaluated(parameter.annotation, target)
        kind = None if _is_object(parameter, annotation) else _json_type(annotation)
        known = parameter.name in _SUPPLIED
        required = parameter.default is parameter.empty and not known
        if known:
            # A request may repeat a value that the server supplies, as code for transformers does.
            kind = Any
        if kind is None or parameter.kind is parameter.POSITIONAL_ONLY:
            if required:
                self.missing.append(f"{parameter.name}{_described(parameter)}")
            return
        if _names_token_ids(parameter.name, annotation):
            kind = _token_ids(parameter.name, annotation, kind)
        if parameter.default is None or type(None) in typing.get_args(annotation):
            kind = kind | None
        # Prefixed, since pydantic does not allow every parameter name as a field name.
        fields[f"arg_{parameter.name}"] = (kind, _field(parameter, required=required))

    def arguments(self, given: Mapping[str, Any], facts: ModelFacts) -> dict[str, Any]:
        """Returns the keyword arguments of a call: the request's, and the server's for omitted parameters.

        Raises ValueError for a tokenizer and, where requests are checked, for a value that differs from the server's.
        """
        arguments = dict(given)
        if TOKENIZER in given:
            raise ValueError("tokenizer: the server supplies it; leave it out")
        for name, parameter in self._supplied.items():
            if name in given:
                arguments[name] = supplied_by_server(name, facts)
                # What a request may repeat is the device on which it was checked.
                if not facts.on_device and str(given[name]) != str(arguments[name]):
                    raise ValueError(f"{name}: the server supplies {arguments[name]}; leave it out")
            elif name in (TOKENIZER, "device") or parameter.default is parameter.empty:
                arguments[name] = supplied_by_server(name, facts)
        return arguments


@lru_cache(maxsize=256)
def request_parameters(target: Callable[..., Any], skip: int = 0) -> RequestParameters:
    """Returns the cached `RequestParameters` of these arguments."""
    return RequestParameters(target, skip)


def _evaluated(annotation: Any, target: Callable[..., Any]) -> Any:
    """Returns the value of a text annotation; text that cannot be evaluated at run time stays text."""
    if not isinstance(annotation, str):
        return annotation
    function = target if inspect.isfunction(target) else getattr(target, "__init__", target)
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}))["value"]
    except Exception:  # noqa: BLE001 - names that are imported for type checkers alone, and anything else
        return annotation


def _is_object(parameter: inspect.Parameter, annotation: Any) -> bool:
    """True for a parameter that needs an object, judged by its name or by a class imported for type checkers alone."""
    if annotation is parameter.empty:
        return parameter.name in _OBJECTS
    return isinstance(annotation, str) and annotation.replace(".", "").isidentifier()


def _described(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return ""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else None
    return f" ({kind or inspect.formatannotation(parameter.annotation).replace('collections.abc.', '')})"


def _json_type(annotation: Any) -> Any:
    """Returns the part of a type that JSON can express, None if there is none: `int` for `int | torch.Tensor`."""
    if annotation is inspect.Parameter.empty or annotation is Any or isinstance(annotation, str):
        return Any
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _json_type(arguments[0])
    if annotation in _SCALARS or annotation is None:
        return annotation
    if origin is typing.Literal:
        return annotation
    if origin in (typing.Union, types.UnionType):
        found = [kind for kind in map(_json_type, arguments) if kind is not None]
        return _one_error(found) if any(kind is not type(None) for kind in found) else None
    if annotation in _LISTS or origin in _LISTS:
        return _list_of(arguments[:1])
    if annotation is tuple or origin is tuple:
        return _tuple_of(arguments)
    if annotation in _DICTS or origin in _DICTS:
        kinds = [_json_type(each) for each in arguments]
        return None if None in kinds else dict[tuple(kinds)] if kinds else dict[str, Any]  # type: ignore[misc]
    return None


def _list_of(arguments: Sequence[Any]) -> Any:
    kind = _json_type(arguments[0]) if arguments else Any
    return None if kind is None else list[kind]  # type: ignore[valid-type]


def _tuple_of(arguments: Sequence[Any]) -> Any:
    """Returns a tuple type that accepts lists: JSON has no tuples."""
    kinds = [each if each is ... else _json_type(each) for each in arguments]
    if None in kinds:
        return None
    return Annotated[tuple[tuple(kinds)] if kinds else tuple[Any, ...], Field(strict=False)]  # type: ignore[misc]


def _one_error(kinds: list[Any]) -> Any:
    """Returns the union of these types; it reports one error, at the place of the value itself."""
    if len(kinds) == 1:
        return kinds[0]

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            problems = dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in error.errors())
            raise ValueError("; or: ".join(problems)) from None

    return Annotated[typing.Union[tuple(kinds)], WrapValidator(check)]  # noqa: UP007 - of a list


def _names_token_ids(name: str, annotation: Any) -> bool:
    """True for a parameter that holds token ids, judged by the names that transformers uses.

    `eos_token_id` and `bad_words_ids` do, and `suppress_tokens` if it is a list; `min_new_tokens: int` is a number.
    """
    if name.endswith("_tokens") or name == "tokens":
        return annotation is inspect.Parameter.empty or list in _origins(annotation)
    whole = ("token_id", "token_ids", "bad_words_ids")
    return name in whole or name.endswith(("_token_id", "_token_ids", "_input_ids", "_speech_token"))


def _token_ids(name: str, annotation: Any, kind: Any) -> Any:
    """Returns `kind` with its integers restricted to the vocabulary."""

    def check(value: Any, info: ValidationInfo) -> Any:
        for token in _leaves(value):
            in_vocabulary(integer_of(token), info)
        return value

    one: dict[str, Any] = {**TOKEN_SCHEMA}
    many: dict[str, Any] = {"type": "array", "items": one}
    schema: dict[str, Any] = {"type": "array", "items": many} if "words" in name else many
    if name.endswith(("_id", "_token")):
        schema = {"anyOf": [one, many]} if list in _origins(annotation) else one
    return Annotated[kind, BeforeValidator(check), WithJsonSchema(schema)]


def _origins(annotation: Any) -> Iterator[Any]:
    yield typing.get_origin(annotation) or annotation
    for each in typing.get_args(annotation):
        yield from _origins(each)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    elif value is not None:
        yield value


def _field(parameter: inspect.Parameter, *, required: bool) -> Any:
    """Returns a field that shows clients the default if JSON can express it; the constructor sets defaults."""
    default = parameter.default
    if required:
        return Field(..., alias=parameter.name)
    if isinstance(default, str | int | bool | type(None)) or (isinstance(default, float) and math.isfinite(default)):
        return Field(default, alias=parameter.name)
    return Field(default_factory=type(None), alias=parameter.name)
