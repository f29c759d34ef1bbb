"""Options: their declaration as a field of a dataclass, and the checks of values, which name what is allowed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from importlib.util import find_spec
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

KINDS = {bool: "true or false", str: "a text"}
OPTION = "option"
AS_FIELD: Any = object()
Check = Callable[[str, Any], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """Form in which an option is given, where it differs from the field of the configuration.

    name: the option's name. type: its annotation. default: its default. settle: converts the given value to the
    field's. Everything left out is as in the field.
    """

    name: str | None = None
    type: str | None = None
    default: Any = AS_FIELD
    settle: Callable[[Any], Any] | None = None


def option(
    default: Any = MISSING,
    *,
    help: str,  # noqa: A002
    group: str | None = None,
    choices: tuple[str, ...] | None = None,
    check: Check | None = None,
    metavar: str | None = None,
    secret: bool = False,
    given: Given = Given(),
) -> Any:
    """Declares a field of a dataclass as an option: from it come the flag, the YAML key, the keyword, help and check.

    default: the field's default; a list is copied, a function is called for each object. choices: allowed values.
    check: raises ValueError naming the option for a value that is not allowed; called for every value but None, where
    the field may be None. group: title on the help page. secret: neither errors nor `repr` show the value.
    """
    wanted = {"choices": choices, "check": check, "metavar": metavar, "secret": secret or None, "group": group}
    metadata = {key: value for key, value in wanted.items() if value is not None}
    return _field(default, {"help": help, OPTION: given, **metadata})


def _field(default: Any, metadata: dict[str, Any], *, kw_only: bool = False) -> Any:
    shown = not metadata.get("secret")
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata, repr=shown, kw_only=kw_only)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata, repr=shown, kw_only=kw_only)
    return dataclasses.field(default=default, metadata=metadata, repr=shown, kw_only=kw_only)


def with_options_of(*parts: type[Any]) -> Callable[[type[T]], type[T]]:
    """Returns a class decorator, to be applied before `dataclass`: adds the options that the fields of `parts` declare.

    They are keyword-only. Raises ValueError for a name that is declared twice.
    """

    def add(cls: type[T]) -> type[T]:
        for field in (field for part in parts for field in options_of(part)):
            given: Given = field.metadata[OPTION]
            name, default = given.name or field.name, field.default if given.default is AS_FIELD else given.default
            if name in cls.__annotations__:
                raise ValueError(f"{name}: this option is declared twice")
            cls.__annotations__[name] = given.type or field.type
            setattr(cls, name, _field(default, dict(field.metadata), kw_only=True))
        return cls

    return add


def options_of(part: type[Any]) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that are declared as options."""
    return [field for field in dataclasses.fields(part) if OPTION in field.metadata]


def settle_part(part: type[T], options: Any, **others: Any) -> T:
    """Returns a part of the configuration: the options that it declares as given in `options`, and the other fields."""
    values = {}
    for field in options_of(part):
        given: Given = field.metadata[OPTION]
        value = getattr(options, given.name or field.name)
        values[field.name] = value if given.settle is None else given.settle(value)
    return part(**values, **others)


def check_options(options: Any) -> None:
    """Raises ValueError naming the first field of a dataclass of options whose value is not allowed."""
    hints = get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        if value is None and without_none(hint) != hint:
            continue
        try:
            _check_value(field, without_none(hint), value)
        except ValueError:
            if field.metadata.get("secret"):
                raise ValueError(f"{field.name}: its value is not allowed") from None
            raise


def _check_value(field: dataclasses.Field[Any], kind: Any, value: Any) -> None:
    if (choices := field.metadata.get("choices")) is not None:
        require_one_of(field.name, value, choices)
    elif kind in KINDS and not isinstance(value, kind):
        raise ValueError(f"{field.name}: {value!r} is not allowed; it must be {KINDS[kind]}")
    if (check := field.metadata.get("check")) is not None:
        check(field.name, value)


def json_object(given: str | dict[str, Any], example: str) -> dict[str, Any]:
    """Returns a JSON object, given as a dict or as text; raises ValueError, which shows `example`, otherwise."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ValueError(f"no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object such as {example}, not {given}")
    return found


def without_none(hint: Any) -> Any:
    """A type without `| None`."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if get_origin(hint) is Union or type(hint).__name__ == "UnionType" else hint


def require_at_least(least: int, name: str, value: object, unit: str = "") -> None:
    """Raise ValueError unless `value` is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be an integer of at least {least}{unit}")


def at_least(least: int, unit: str = "") -> Check:
    """Returns a check for whole numbers from `least` on; `unit` ends its message."""
    return lambda name, value: require_at_least(least, name, value, unit)


def require_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    """Raise ValueError unless `value` is a finite number from 0 on, or above it."""
    if not is_number(value) or not 0 <= value < math.inf or (above_zero and value == 0):
        allowed = "above 0 seconds" if above_zero else "0 or more seconds"
        raise ValueError(f"{name}: {value!r} is not allowed; it must be {allowed}")


def require_some_seconds(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a finite number above 0."""
    require_seconds(name, value, above_zero=True)


def require_number(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a finite number from 0 on."""
    if not is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be a number of at least 0")


def require_share(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a number above 0 and at most 1."""
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be above 0 and at most 1")


def require_port(name: str, port: object, count: int = 1) -> None:
    """Raise ValueError unless `port` is None or the first of `count` TCP port numbers."""
    last = 65536 - count
    if port is not None and not (isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= last):
        behind = f", since {count} workers have ports behind each other" if count > 1 else ""
        raise ValueError(f"{name}: {port} is not a TCP port; allowed are 1 to {last}{behind}")


def require_collector(name: str, value: object) -> None:
    """Checks the option `otlp_traces_endpoint`; raises ValueError for what is no URL, and without OpenTelemetry."""
    if value is None:
        return
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name}: must be a URL such as http://127.0.0.1:4318/v1/traces, not {value!r}")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise ValueError(f"{name}: needs OpenTelemetry; run `pip install 'fastdeploy-lp[otel]'`")


INSTALL_PADDLEFORMERS = "pip install 'fastdeploy-lp[paddleformers]'"


def has_paddleformers() -> bool:
    """Returns True if PaddleFormers is installed; imports nothing."""
    return find_spec("paddleformers") is not None


def require_model_impl(name: str, value: object) -> None:
    """Checks the option `model_impl`; raises ValueError for "paddleformers" without the package."""
    if value == "paddleformers" and not has_paddleformers():
        raise ValueError(f"{name}: needs PaddleFormers; run `{INSTALL_PADDLEFORMERS}`")


def require_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of these."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}")


def require_names(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a list or tuple of texts."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name}: must be a list of names, not {value!r}")


def require_processors(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a list or tuple of SPECs and classes."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name}: must be a list, not {value!r}")
    for index, spec in enumerate(value):
        if not isinstance(spec, (str, type)):
            raise ValueError(f"{name}.{index}: {spec!r} is neither a name nor a class")


def spec_of(given: str | type) -> str:
    """Returns the SPEC of a declared logits processor: itself, or for a class the path under which it is declared."""
    return given if isinstance(given, str) else f"{given.__module__}:{given.__qualname__}"


def is_number(value: object) -> TypeGuard[float]:
    """Returns True for an int or a float; a bool is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
