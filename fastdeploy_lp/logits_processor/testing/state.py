"""Contents of an object, direct and indirect."""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Iterator, Mapping, Set
from functools import partial
from typing import Any

from fastdeploy_lp.logits_processor.actions import Actions, RequestActions

ATOMS = (str, bytes, int, float, complex, bool, type(None), types.ModuleType, types.BuiltinFunctionType, range)


def held_by(root: object) -> Iterator[object]:
    """Yields every object reachable from `root` through attributes, containers and closures, including `root`.

    It does not enter modules, and of a class it enters only the containers among its own attributes.
    """
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting.extend(_parts(found))


def count_state(root: object) -> int:
    """Returns the number of elements of containers and arrays that are reachable from `root`."""
    return sum(_elements(found) for found in held_by(root))


def _elements(found: Any) -> int:
    if isinstance(found, (Mapping, list, tuple, Set, deque, bytearray)):
        return len(found)
    return math.prod(found.shape) if is_array(found) else 0


def is_array(found: Any) -> bool:
    """True for a numpy array, or a tensor of Paddle or torch."""
    return type(found).__name__ in ("ndarray", "Tensor", "Parameter") and hasattr(found, "shape")


def _parts(found: Any) -> list[Any]:
    # The verbs belong to the chain, not to the processor.
    if isinstance(found, (*ATOMS, Actions, RequestActions)) or is_array(found):
        return []
    if isinstance(found, type):
        return [value for value in vars(found).values() if isinstance(value, (dict, list, set, deque))]
    if isinstance(found, types.FunctionType):
        return [cell.cell_contents for cell in found.__closure__ or () if _is_filled(cell)]
    if isinstance(found, types.MethodType):
        return [found.__self__]
    if isinstance(found, partial):
        return [found.func, *found.args, *found.keywords.values()]
    parts: list[Any] = [type(found)] if type(found).__module__ != "builtins" else []
    if isinstance(found, dict):
        parts += [*found.keys(), *found.values()]
    elif isinstance(found, (list, tuple, Set, deque)):
        parts += list(found)
    parts += list(getattr(found, "__dict__", {}).values())
    for cls in type(found).__mro__:
        names = vars(cls).get("__slots__", ())
        parts += [getattr(found, name, None) for name in ([names] if isinstance(names, str) else names)]
    return parts


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True
