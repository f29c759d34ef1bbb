"""Resolves class names, which plugins return instead of classes."""

from __future__ import annotations

import importlib
import re
from typing import Any

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)")


def normalized_path(name: object) -> str:
    """Returns "module:Class" for itself and for "module.Class"; raises ValueError for anything else."""
    if isinstance(name, str):
        if PATH.fullmatch(name):
            return name
        if dotted := DOTTED.fullmatch(name):
            return f"{dotted[1]}:{dotted[2]}"
    raise ValueError(f"{name!r} is no name of a class; write module:Class")


def load_class(name: str, base: type | None = None) -> type[Any]:
    """Returns the class that "module:Class" or "module.Class" names.

    Raises ValueError, which names the module, the class or the base class, if the module or the class does not exist,
    or if the class is no subclass of `base`. An exception from the import is the cause of the ValueError.
    """
    path = normalized_path(name)
    module_name, _, class_name = path.partition(":")
    found: Any = _module(module_name, path)
    for part in class_name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{path!r}: the module {module_name} has no {class_name}")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise ValueError(f"{path!r} is no class but a {type(found).__name__}")
    if base is not None and not issubclass(found, base):
        raise ValueError(f"{path!r} must be a subclass of {base.__module__}:{base.__qualname__}")
    return found


def _module(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        absent = error.name or name
        if name == absent or name.startswith(f"{absent}."):
            raise ValueError(f"{path!r}: there is no module {absent}") from None
        raise ValueError(f"{path!r}: importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        text = " ".join(str(error).split())
        raise ValueError(f"{path!r}: importing {name} failed: {type(error).__name__}: {text}") from error
