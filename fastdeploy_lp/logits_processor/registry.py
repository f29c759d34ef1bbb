"""From the SPEC an operator writes to a logits processor class, with every mistake told before a model is loaded."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastdeploy_lp.logits_processor.base import LogitsProcessor

BUILTIN: dict[str, str] = {
    "LogitBiasLogitsProcessor": "fastdeploy_lp.logits_processor.builtin.logit_bias:LogitBiasLogitsProcessor",
}


class LogitsProcessorSpecError(ValueError):
    """A SPEC that does not lead to a logits processor; the message says what to write instead."""


@dataclass(frozen=True)
class DeclaredProcessor:
    """One entry of the chain: the name requests and metrics use, the SPEC it came from, and the class.

    `given_as_object` marks a class that the caller of `LLM` handed over, which its SPEC need not lead to again.
    """

    name: str
    spec: str
    cls: type[LogitsProcessor]
    given_as_object: bool = False


def load_processors(specs: Sequence[str], class_objects: Mapping[str, object] | None = None) -> list[DeclaredProcessor]:
    """Resolve SPECs in order; `class_objects` maps a SPEC to a class that was given as an object.

    Raises LogitsProcessorSpecError for a SPEC that cannot be resolved and for two of one name.
    """
    declared: list[DeclaredProcessor] = []
    for spec in specs:
        given = (class_objects or {}).get(spec)
        cls = check_class(given, spec) if given is not None else load_class(spec)
        if any(cls.__name__ == other.name for other in declared):
            raise LogitsProcessorSpecError(f"logits_processors: {cls.__name__} is declared twice; names must be unique")
        declared.append(DeclaredProcessor(cls.__name__, spec, cls, given_as_object=given is not None))
    return declared


def spec_of(cls: type[LogitsProcessor]) -> str:
    """The SPEC under which a class object is declared."""
    return f"{cls.__module__}:{cls.__qualname__}"


def load_class(spec: str) -> type[LogitsProcessor]:
    """The class that a builtin name or `module.path:ClassName` stands for; raises LogitsProcessorSpecError."""
    module_path, colon, class_path = BUILTIN.get(spec, spec).partition(":")
    if not colon:
        raise LogitsProcessorSpecError(_no_colon(spec))
    if not module_path or not class_path or ":" in class_path:
        raise LogitsProcessorSpecError(f"logits_processors: {spec!r} must read module.path:ClassName")
    return check_class(_attribute(_import(module_path, spec), class_path, spec), spec)


def check_class(found: object, spec: str) -> type[LogitsProcessor]:
    """`found` itself if it is a usable logits processor class; raises LogitsProcessorSpecError otherwise."""
    if not isinstance(found, type):
        kind = type(found).__name__
        raise LogitsProcessorSpecError(f"logits_processors: {spec!r} is no class but {kind}; name the class itself")
    if not issubclass(found, LogitsProcessor):
        raise LogitsProcessorSpecError(
            f"logits_processors: {spec!r} is not a LogitsProcessor; "
            "derive it from fastdeploy_lp.openai.logits_processor.LogitsProcessor"
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        hint = "; rename __call__ to apply" if "apply" in missing and "__call__" in vars(found) else ""
        raise LogitsProcessorSpecError(
            f"logits_processors: {spec!r} does not define {', '.join(missing)}; every LogitsProcessor needs "
            f"__init__, update_state and apply{hint}"
        )
    _check_constructor(found, spec)
    return found


def _check_constructor(cls: type[LogitsProcessor], spec: str) -> None:
    try:
        inspect.signature(cls).bind(None)
    except TypeError as error:
        raise LogitsProcessorSpecError(
            f"logits_processors: {spec!r} cannot be built as {cls.__name__}(fd_config): {error}; "
            "write def __init__(self, fd_config)"
        ) from None


def _no_colon(spec: str) -> str:
    valid = ", ".join(BUILTIN)
    close = difflib.get_close_matches(spec, BUILTIN, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    if "." in spec:
        module_path, _, class_name = spec.rpartition(".")
        guess = f"; for a class of your own write {module_path}:{class_name}"
    return (
        f"logits_processors: {spec!r} is no builtin (builtin: {valid}) and has no colon (module.path:ClassName){guess}"
    )


def _import(module_path: str, spec: str) -> object:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        absent = error.name or module_path
        if module_path == absent or module_path.startswith(f"{absent}."):
            hint = "check the spelling, and that its folder is on PYTHONPATH or its package installed"
            raise LogitsProcessorSpecError(
                f"logits_processors: {spec!r} names the module {absent!r}, which cannot be found; {hint}"
            ) from None
        problem = f"importing {module_path!r} for {spec!r} failed: {_one_line(error)}; install what it needs"
        raise LogitsProcessorSpecError(f"logits_processors: {problem}") from error
    except Exception as error:
        problem = f"importing {module_path!r} for {spec!r} failed: {type(error).__name__}: {_one_line(error)}"
        raise LogitsProcessorSpecError(f"logits_processors: {problem}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _attribute(module: object, class_path: str, spec: str) -> object:
    found = module
    for part in class_path.split("."):
        if not hasattr(found, part):
            classes = sorted(name for name, value in vars(module).items() if _is_own_processor(value))
            hint = f"; it has {', '.join(classes)}" if classes else "; it has no LogitsProcessor classes"
            name = getattr(module, "__name__", "module")
            raise LogitsProcessorSpecError(f"logits_processors: {spec!r}: {name} has no {class_path!r}{hint}")
        found = getattr(found, part)
    return found


def _is_own_processor(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, LogitsProcessor) and value is not LogitsProcessor
