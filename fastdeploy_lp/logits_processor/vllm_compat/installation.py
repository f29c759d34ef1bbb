"""Installation of the stand-in modules under vLLM's names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fastdeploy_lp.logits_processor.vllm_compat.contents import CONTENTS

TOP = "vllm"


class StandIn(ModuleType):
    """A module that loads each name at its first use, since most need torch or the engine."""

    def __init__(self, name: str, homes: Mapping[str, str]) -> None:
        super().__init__(name, f"A stand-in for vLLM's module {name} by fastdeploy_lp.")
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__all__ = sorted(homes)
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        """Returns the object of a name; raises AttributeError for a name without a stand-in."""
        home = self.__dict__.get("_homes", {}).get(name)
        if home is None:
            raise AttributeError(f"{self.__name__}.{name} has no stand-in (--vllm-compat); it needs vLLM itself")
        module, _, attribute = home.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        """Returns every name, loaded or not."""
        return sorted({*super().__dir__(), *self.__all__})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the module by name, so that a class from a program's `__main__` can refer to it in the worker."""
        return importlib.import_module, (self.__name__,)


def install() -> None:
    """Installs the stand-ins in `contents.py` under vLLM's module names.

    Does nothing if vLLM itself is installed, or on a second call.
    """
    if TOP in sys.modules or _vllm_is_installed():
        return
    for name, homes in CONTENTS.items():
        module = StandIn(name, homes)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def stand_ins_are_installed() -> bool:
    """Returns True if `import vllm` loads a stand-in in this process."""
    return isinstance(sys.modules.get(TOP), StandIn)


def _vllm_is_installed() -> bool:
    # A folder named vllm in the working directory is a namespace package, which has no file.
    spec = importlib.util.find_spec(TOP)
    return spec is not None and spec.origin is not None
