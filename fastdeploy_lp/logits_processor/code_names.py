"""Argument names of a class without `Params`: names that its code mentions."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial, partialmethod
from types import CodeType, FunctionType, ModuleType
from typing import Any

OWN_PACKAGE = __name__.partition(".")[0]
MAX_LENGTH = 200
"""Maximum of characters in a name; longer constants are texts."""
MAX_OBJECTS = 2_000
"""Maximum of functions, classes and collections read for one class."""


def names_in_code(cls: type) -> frozenset[str]:
    """Returns the names by which a class's code may read an argument, without running it.

    These are string constants (`args.get("name")`, `args["name"]`), attributes read from objects other than `self`
    (`args.name`), and annotated fields, in the class, its bases, and the functions, classes and constants of the same
    package that they refer to. A name built at run time is not found.
    """
    return frozenset(_Reader(cls).names)


class _Reader:
    """Reads a class, then every object of its package that it refers to, each once."""

    def __init__(self, cls: type) -> None:
        self.names: set[str] = set()
        self._package = cls.__module__.partition(".")[0]
        # By id; a kept object's id is not reused.
        self._seen: dict[int, Any] = {}
        # Bases of this package are interfaces: they read no arguments.
        self._waiting: list[Any] = [base for base in cls.__mro__ if base is cls or not _is_ours(base)]
        while self._waiting and len(self._seen) < MAX_OBJECTS:
            found = _unwrapped(self._waiting.pop())
            if isinstance(found, str):
                if len(found) <= MAX_LENGTH:
                    self.names.add(found)
            elif id(found) not in self._seen:
                self._seen[id(found)] = found
                self._read(found)

    def _read(self, found: Any) -> None:
        if isinstance(found, CodeType):
            self._read_code(found)
        elif isinstance(found, FunctionType):
            self._read_function(found)
        elif isinstance(found, type):
            self._read_class(found)
        elif isinstance(found, property):
            self._waiting += [found.fget, found.fset]
        elif isinstance(found, (tuple, list, set, frozenset)):
            self._waiting += [each for each in found if _may_hold_names(each)]
        elif isinstance(found, Mapping):
            self._waiting += [each for each in (*found.keys(), *found.values()) if _may_hold_names(each)]

    def _read_class(self, cls: type) -> None:
        if cls.__module__ == "builtins":
            return
        self._waiting += list(vars(cls).get("__annotations__", ()))
        if issubclass(cls, Enum):
            self._waiting += [member.value for member in cls]
        for name, value in list(vars(cls).items()):
            if not name.startswith("__") or isinstance(_unwrapped(value), FunctionType):
                self._waiting.append(value)

    def _read_function(self, function: FunctionType) -> None:
        self._waiting += [function.__code__, function.__defaults__ or (), function.__kwdefaults__ or {}]
        self._waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        for name in _all_names(function.__code__):
            self._refer_to(function.__globals__.get(name), function.__code__)

    def _refer_to(self, found: Any, code: CodeType) -> None:
        """Reads the object of a global name if it is a constant or of the same package."""
        if isinstance(found, ModuleType):
            if found.__name__.partition(".")[0] == self._package:
                self._waiting += [
                    vars(found)[name] for name in _all_names(code) if self._is_near(vars(found).get(name))
                ]
        elif self._is_near(found):
            self._waiting.append(found)

    def _is_near(self, found: Any) -> bool:
        if isinstance(found, (str, tuple, list, set, frozenset, dict)):
            return True
        found = _unwrapped(found)
        return isinstance(found, (FunctionType, type)) and found.__module__.partition(".")[0] == self._package

    def _read_code(self, code: CodeType) -> None:
        self._waiting += [each for each in code.co_consts if isinstance(each, (str, tuple, frozenset, CodeType))]
        self.names.update(_attributes(code))


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in (OWN_PACKAGE, "builtins", "abc", "typing")


def _unwrapped(found: Any) -> Any:
    """Returns the function inside the standard library's decorators and descriptors."""
    while True:
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        elif isinstance(found, (partial, partialmethod)):
            found = found.func
        else:
            return found


def _may_hold_names(found: Any) -> bool:
    return isinstance(found, (str, tuple, list, set, frozenset, dict, FunctionType))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises for an empty one
    except ValueError:
        return False
    return True


def _all_names(code: CodeType) -> Iterator[str]:
    """Yields global and attribute names, including nested functions'."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)


def _attributes(code: CodeType) -> Iterator[str]:
    """Yields attributes that the code reads, except attributes of `self` and called methods."""
    first = code.co_varnames[0] if code.co_argcount else None
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_ATTR" and not _is_call(instruction):
            of_self = before is not None and before.opname.startswith("LOAD_FAST") and before.argval == first
            # Only a method's first argument is its object; a function's may be the request's arguments.
            if not (of_self and first in ("self", "cls")):
                yield instruction.argval
        before = instruction


def _is_call(instruction: dis.Instruction) -> bool:
    """Returns True for a method call, which Python 3.12 and later mark by a bit of the instruction."""
    return sys.version_info >= (3, 12) and bool((instruction.arg or 0) & 1)
