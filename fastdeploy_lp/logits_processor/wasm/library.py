"""The calls of wasmtime's C API that each step makes.

wasmtime's Python methods look up a function's type at each call, which takes about 40 µs; these take 1 to 2 µs.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_POINTER, _UINT64, _SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t

HostCallback = Callable[[int | None, int, int, int], int | None]
"""(environment, caller, address of arguments and results, their number) → address of a trap, None for success."""

RAW_BYTES = 16
"""Bytes of an argument or result in memory."""


class _ByteVector(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("data", _POINTER))


@dataclass(frozen=True)
class Export:
    """A function or a memory. extern: keeps the struct. place: its address."""

    extern: Any
    place: int


class WasmLibrary:
    """Typed entry points of the shared library that the package `wasmtime` contains.

    Pointers are integers. Calls release the interpreter's lock.
    """

    def __init__(self) -> None:
        bindings = importlib.import_module("wasmtime._bindings")
        dll = bindings.dll
        self.callback_type = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER, _POINTER, _SIZE)
        self.finalizer_type = ctypes.CFUNCTYPE(None, _POINTER)

        def entry(name: str, result: Any, *arguments: Any) -> Any:
            return ctypes.CFUNCTYPE(result, *arguments)((name, dll))

        self.call = entry("wasmtime_func_call_unchecked", _POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER)
        self.new_store = entry("wasmtime_store_new", _POINTER, _POINTER, _POINTER, _POINTER)
        self.context_of = entry("wasmtime_store_context", _POINTER, _POINTER)
        self.limit_store = entry("wasmtime_store_limiter", None, _POINTER, *[ctypes.c_int64] * 5)
        self.delete_store = entry("wasmtime_store_delete", None, _POINTER)
        self.instantiate = entry("wasmtime_instance_pre_instantiate", _POINTER, *[_POINTER] * 4)
        self._export = entry(
            "wasmtime_instance_export_get", ctypes.c_bool, _POINTER, _POINTER, ctypes.c_char_p, _SIZE, _POINTER
        )
        self._extern = bindings.wasmtime_extern_t
        self.instance_bytes = ctypes.sizeof(bindings.wasmtime_instance_t)
        self.set_fuel = entry("wasmtime_context_set_fuel", _POINTER, _POINTER, _UINT64)
        self.get_fuel = entry("wasmtime_context_get_fuel", _POINTER, _POINTER, _POINTER)
        self.set_deadline = entry("wasmtime_context_set_epoch_deadline", None, _POINTER, _UINT64)
        self.memory_data = entry("wasmtime_memory_data", _POINTER, _POINTER, _POINTER)
        self.memory_size = entry("wasmtime_memory_data_size", _SIZE, _POINTER, _POINTER)
        self.define_host = entry(
            "wasmtime_linker_define_func_unchecked",
            *(_POINTER, _POINTER, ctypes.c_char_p, _SIZE, ctypes.c_char_p, _SIZE, _POINTER),
            *(self.callback_type, _POINTER, self.finalizer_type),
        )
        self._new_trap = entry("wasmtime_trap_new", _POINTER, ctypes.c_char_p, _SIZE)
        self._trap_code = entry("wasmtime_trap_code", ctypes.c_bool, _POINTER, _POINTER)
        self._trap_message = entry("wasm_trap_message", None, _POINTER, _POINTER)
        self._delete_trap = entry("wasm_trap_delete", None, _POINTER)
        self._error_message = entry("wasmtime_error_message", None, _POINTER, _POINTER)
        self._delete_error = entry("wasmtime_error_delete", None, _POINTER)
        self._delete_bytes = entry("wasm_byte_vec_delete", None, _POINTER)

    def export(self, context: int, instance: int, name: str) -> Export:
        """Returns an export that the instance has."""
        found = self._extern()
        text = name.encode()
        self._export(context, instance, text, len(text), ctypes.addressof(found))
        return Export(found, ctypes.addressof(found) + self._extern.of.offset)

    def new_trap(self) -> int:
        """Returns a trap for a host function to return."""
        text = b"a host function failed"
        trap: int = self._new_trap(text, len(text))
        return trap

    def take_trap(self, trap: int) -> tuple[int | None, str]:
        """Returns the code of a trap, None if it has none, and its message; deletes it."""
        code = ctypes.c_uint8()
        found = self._trap_code(trap, ctypes.addressof(code))
        message = self._text(self._trap_message, trap)
        self._delete_trap(trap)
        return code.value if found else None, message

    def take_error(self, error: int) -> str:
        """Returns the message of an error; deletes it."""
        message = self._text(self._error_message, error)
        self._delete_error(error)
        return message

    def _text(self, read: Callable[[int, int], None], source: int) -> str:
        vector = _ByteVector()
        read(source, ctypes.addressof(vector))
        data = ctypes.string_at(vector.data, vector.size) if vector.data else b""
        self._delete_bytes(ctypes.addressof(vector))
        return data.decode("utf-8", "replace").rstrip("\0")


@lru_cache(maxsize=1)
def wasm_library() -> WasmLibrary:
    """Returns the library of this process; raises ImportError without the package `wasmtime`."""
    return WasmLibrary()
