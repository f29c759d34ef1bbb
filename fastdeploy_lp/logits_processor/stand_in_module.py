"""Modules under the names of a package that is not installed, for code that imports from it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Lazily:
    """An attribute "module:name", imported at its first use."""

    path: str

    def load(self) -> Any:
        """Imports and returns the attribute."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)


def is_absent(package: str) -> bool:
    """Returns True if neither the package nor a stand-in for it is present."""
    return package not in sys.modules and importlib.util.find_spec(package) is None


def install_modules(contents: Mapping[str, Mapping[str, object]]) -> None:
    """Makes `import name` work for each name; packages must precede their modules."""
    for name, attributes in contents.items():
        module = _module(name, attributes)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _module(name: str, attributes: Mapping[str, object]) -> ModuleType:
    module = ModuleType(name, "A stand-in by fastdeploy_lp.")
    # Each is a package, so that `from parent import child` looks for the child.
    module.__path__ = []
    later = {key: value for key, value in attributes.items() if isinstance(value, Lazily)}
    vars(module).update({key: value for key, value in attributes.items() if key not in later})

    def load(key: str) -> Any:
        if key not in later:
            raise AttributeError(f"module {name!r}, a stand-in by fastdeploy_lp, has no attribute {key!r}")
        return later[key].load()

    vars(module)["__getattr__"] = load
    return module
