"""Reads `model_state.pdparams` as arrays.

The file is a pickle, and a pickle may name any function to be called. Here it may name only the functions that build
arrays, each replaced by this module's own: numpy builds nothing from a type or a state in the file.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.errors import CheckpointError

# Written by `paddle.save` beside the tensors: their names within a program.
NAME_TABLE = "StructuredToParameterName@@"
# Element types by their code in a pickle. Paddle stores bfloat16 as two-byte integers.
ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    "f2": np.dtype("<f2"),
    "f4": np.dtype("<f4"),
    "f8": np.dtype("<f8"),
    "u2": np.dtype(ml_dtypes.bfloat16),
}
LITTLE_ENDIAN = (3, "<", None, None, None, -1, -1, 0)
MAX_DIMENSIONS = 32
SHOWN_CHARACTERS = 80
# Opcodes of pickle that call nothing.
PLAIN_OPERATIONS = """
    PROTO FRAME STOP MARK POP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL
    EMPTY_DICT EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
    BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
"""
_INSTEAD = "give a file that `paddle.save(model.state_dict(), …)` wrote"


def read_pdparams(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the tensors by name, read-only, bfloat16 as ml_dtypes' type of that name.

    Raises CheckpointError for a file that cannot be read, or that needs anything but arrays of floating-point numbers.
    """
    try:
        with path.open("rb") as stream:
            state = _ArraysOnly(stream, path.stat().st_size).load()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; {_INSTEAD}") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise anything
        reason = _shown(" ".join(str(error).split())) if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: cannot be read as pdparams ({reason}); {_INSTEAD}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds no table of tensors; {_INSTEAD}")
    return {name: _array(path, name, value) for name, value in state.items() if name != NAME_TABLE}


def _array(path: Path, name: str, value: Any) -> NDArray[Any]:
    # A parameter saved outside a state dict is a pair of its name and its array.
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    if not isinstance(value, _Array) or value.content is None:
        raise CheckpointError(f"{path}: {_shown(name)!r} is no tensor; {_INSTEAD}")
    return value.content


def _shown(text: str) -> str:
    """Truncates text from the file for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _table() -> dict[str, Any]:
    """Returns an empty table (dicts are ordered); the file then adds its entries."""
    return {}


class _Elements:
    """An element type that a file names; always one of ELEMENT_TYPES, regardless of the state in the file."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code not in ELEMENT_TYPES:
            shown = _shown(code) if isinstance(code, str) else type(code).__name__
            raise CheckpointError(f"asks for arrays of {shown!r}; weights must be floating-point numbers")
        self.dtype = ELEMENT_TYPES[code]

    def set_state(self, state: Any) -> None:
        """Accepts only little-endian numbers."""
        if state != LITTLE_ENDIAN:
            raise CheckpointError("asks for numbers in another order of bytes")


class _Array:
    """An array in a file; `content` is None until its state is read."""

    def __init__(self, *_: Any) -> None:
        self.content: NDArray[Any] | None = None

    def set_state(self, state: Any) -> None:
        """Views the bytes of the state as numbers; raises CheckpointError if their count does not match the shape."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise CheckpointError("asks for an array without shape, type and bytes")
        _, shape, elements, is_fortran, content = state
        if not isinstance(elements, _Elements) or not isinstance(content, bytes):
            raise CheckpointError("asks for an array of something else than raw numbers")
        if not _is_shape(shape) or math.prod(shape) * elements.dtype.itemsize != len(content):
            raise CheckpointError(f"asks for an array whose shape does not fit its {len(content)} bytes")
        order: Any = "F" if is_fortran is True else "C"
        self.content = np.frombuffer(content, elements.dtype).reshape(shape, order=order)


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
    )


@dataclass(frozen=True)
class _Allowed:
    """A global that a file may name; `make` runs when the file calls it."""

    make: Callable[..., Any]


class _ArraysOnly(pickle._Unpickler):
    """Unpickler in Python: the C version allocates as many entries as a damaged file claims.

    Opcodes and globals are closed lists. num_bytes: the size of the file.
    """

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]]

    def __init__(self, stream: Any, num_bytes: int) -> None:
        super().__init__(stream)
        self._bytes_to_encode = num_bytes
        reconstruct = _Allowed(_Array)
        # By module and name, as in pickles; numpy's core module was renamed in version 2.
        self._allowed = {
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): _Allowed(_Elements),
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("_codecs", "encode"): _Allowed(self._latin1),
            ("collections", "OrderedDict"): _Allowed(_table),
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise CheckpointError(f"asks for {_shown(f'{module}.{name}')!r}, which is no part of an array")
        return self._allowed[module, name]

    def load_reduce(self) -> None:
        """Calls an allowed global."""
        arguments = self.stack.pop()
        function = self.stack[-1]
        if not isinstance(function, _Allowed) or not isinstance(arguments, tuple):
            raise CheckpointError("asks for a call of something that makes no array")
        self.stack[-1] = function.make(*arguments)

    def load_build(self) -> None:
        """Sets the state of an element type or an array from the stack."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, (_Elements, _Array)):
            raise CheckpointError("asks for the state of something that is no array")
        target.set_state(state)

    def load_setitem(self) -> None:
        """Adds one entry to a table."""
        value, name = self.stack.pop(), self.stack.pop()
        self._put(self.stack[-1], [name, value])

    def load_setitems(self) -> None:
        """Adds entries to a table."""
        entries = self.pop_mark()  # type: ignore[attr-defined]
        self._put(self.stack[-1], entries)

    def _put(self, table: Any, entries: list[Any]) -> None:
        # Only strings: hashing nested tuples, each twice in the next one, takes exponential time.
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in entries[::2]):
            raise CheckpointError("asks for a table of something else than names")
        table.update(zip(entries[::2], entries[1::2], strict=True))

    def load_unknown(self) -> None:
        """Rejects an operation that no table of arrays needs."""
        raise CheckpointError("asks for an operation that makes no array")

    def _latin1(self, text: Any, encoding: Any) -> bytes:
        """Encodes text to bytes, as older protocols need, up to the file's size in total; rejects unsafe codecs."""
        if encoding != "latin1" or not isinstance(text, str):
            raise CheckpointError("asks for a codec other than 'latin1'")
        self._bytes_to_encode -= len(text)
        if self._bytes_to_encode < 0:
            raise CheckpointError("asks for more bytes than it has")
        return text.encode("latin1")


def _operations() -> dict[int, Any]:
    """Returns the handlers of all 256 opcodes; opcodes not listed here are rejected."""
    table: dict[int, Any] = dict.fromkeys(range(256), _ArraysOnly.load_unknown)
    known: Any = pickle._Unpickler.dispatch
    for name in PLAIN_OPERATIONS.split():
        code = getattr(pickle, name)[0]
        table[code] = known[code]
    return table | {
        pickle.REDUCE[0]: _ArraysOnly.load_reduce,
        pickle.BUILD[0]: _ArraysOnly.load_build,
        pickle.SETITEM[0]: _ArraysOnly.load_setitem,
        pickle.SETITEMS[0]: _ArraysOnly.load_setitems,
    }


_ArraysOnly.dispatch = _operations()
