"""Reads `model_state.pdparams` as arrays.

The file is a pickle, and a pickle may name any function to be called. Here it may name those that arrays are made of
and nothing else; whatever else it names is refused before it is looked up.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.errors import CheckpointError

# What `paddle.save` writes beside the tensors: their names within a program.
NAME_TABLE = "StructuredToParameterName@@"
# Element types, uint16 among them for bfloat16, and what a pickle says of them: little-endian and nothing else.
FLOATS = ("f2", "f4", "f8", "u2")
LITTLE_ENDIAN = (3, "<", None, None, None, -1, -1, 0)
_INSTEAD = "give a file that `paddle.save(model.state_dict(), …)` wrote"


def read_pdparams(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors by name, bfloat16 as ml_dtypes' type of that name.

    Raises CheckpointError for a file that cannot be read, and for one that asks for anything but arrays of
    floating-point numbers.
    """
    try:
        with path.open("rb") as stream:
            state = _ArraysOnly(stream).load()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; {_INSTEAD}") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path}: cannot be read as pdparams ({reason}); {_INSTEAD}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds no table of tensors; {_INSTEAD}")
    return {name: _array(path, name, value) for name, value in state.items() if name != NAME_TABLE}


def _array(path: Path, name: Any, value: Any) -> NDArray[Any]:
    # A parameter that was saved outside of a state dict is a pair of its name and its array.
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    if not isinstance(name, str) or not isinstance(value, np.ndarray):
        raise CheckpointError(f"{path}: {name!r} is no tensor; {_INSTEAD}")
    # Two-byte integers are how Paddle hands out bfloat16.
    return value.view(ml_dtypes.bfloat16) if value.dtype == np.uint16 else value


def _latin1(text: str, encoding: str) -> bytes:
    """Older protocols spell bytes so; any other codec could do anything."""
    if encoding != "latin1":
        raise CheckpointError(f"asks for the codec {encoding!r}")
    return text.encode("latin1")


def _dtype(code: Any, *_: Any) -> np.dtype[Any]:
    if code not in FLOATS:
        raise CheckpointError(f"asks for arrays of {code!r}; weights must be floating-point numbers")
    return np.dtype(f"<{code}")


_RECONSTRUCT: Any = np.ndarray(0).__reduce__()[0]

# By module and name, as pickles spell them; numpy's core moved in version 2.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): OrderedDict,
}


class _ArraysOnly(pickle._Unpickler):
    """The one written in Python: the other one allocates as many places as a damaged file counts."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise CheckpointError(f"asks for {module}.{name}, which is no part of an array")
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise CheckpointError(f"asks for the outside object {pid!r}")

    def load_build(self) -> None:
        """State is for arrays; what a type is, `_dtype` has said already."""
        target, state = self.stack[-2], self.stack[-1]
        if isinstance(target, np.dtype):
            if state != LITTLE_ENDIAN:
                raise CheckpointError("asks for numbers in another order of bytes")
            self.stack.pop()
        elif type(target) is np.ndarray:
            # Not among the annotations of the standard library.
            super().load_build()  # type: ignore[misc]
        else:
            raise CheckpointError("asks for the state of something that is no array")

    dispatch[pickle.BUILD[0]] = load_build
