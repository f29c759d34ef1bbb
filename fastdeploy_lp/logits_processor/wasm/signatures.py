"""Imports and exports of a module, read from its bytes: wasmtime ends the process if it is asked for a vector type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fastdeploy_lp.logits_processor.wasm.binary import ByteReader, sections
from fastdeploy_lp.logits_processor.wasm.errors import WasmError

FUNCTION, TABLE, MEMORY, GLOBAL = range(4)
_TYPE_SECTION, _IMPORT_SECTION, _FUNCTION_SECTION, _EXPORT_SECTION = 1, 2, 3, 7
_FUNCTION_TYPE = 0x60
_VALUES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128", 0x70: "funcref", 0x6F: "externref"}
_HAS_MAXIMUM = 1

Found = TypeVar("Found")


class Signature(NamedTuple):
    """Types of a function's parameters and results, named as in the text format."""

    params: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.params)}) -> ({', '.join(self.results)})"


@dataclass(frozen=True)
class Imported:
    """An import; signature: None if it is no function."""

    module: str
    name: str
    signature: Signature | None


@dataclass(frozen=True)
class Exported:
    """An export; kind: FUNCTION, TABLE, MEMORY or GLOBAL. signature: None if it is no function."""

    kind: int
    signature: Signature | None


@dataclass(frozen=True)
class ModuleTypes:
    """The imports of a module, and its exports by name."""

    imports: list[Imported]
    exports: dict[str, Exported]

    @classmethod
    def of(cls, content: bytes) -> ModuleTypes:
        """Reads the bytes of a valid module; raises WasmError for types of features that are off here."""
        bodies = dict(sections(content))

        def entries(section: int, read: Callable[[ByteReader], Found]) -> list[Found]:
            reader = ByteReader(bodies.get(section, b"\0"))
            return [read(reader) for _ in range(reader.number())]

        types = entries(_TYPE_SECTION, _signature)
        imports = entries(_IMPORT_SECTION, lambda reader: _imported(reader, types))
        functions = [each.signature for each in imports if each.signature is not None]
        functions += [types[index] for index in entries(_FUNCTION_SECTION, ByteReader.number)]
        return cls(imports, dict(entries(_EXPORT_SECTION, lambda reader: _exported(reader, functions))))


def _signature(reader: ByteReader) -> Signature:
    if reader.byte() != _FUNCTION_TYPE:
        raise WasmError("has a type that is no function's")
    return Signature(_values(reader), _values(reader))


def _values(reader: ByteReader) -> tuple[str, ...]:
    return tuple(_value(reader) for _ in range(reader.number()))


def _value(reader: ByteReader) -> str:
    found = _VALUES.get(reader.byte())
    if found is None:
        raise WasmError(f"has a type other than {', '.join(_VALUES.values())}")
    return found


def _imported(reader: ByteReader, types: list[Signature]) -> Imported:
    module, name, kind = reader.name(), reader.name(), reader.byte()
    if kind == FUNCTION:
        return Imported(module, name, types[reader.number()])
    if kind in (TABLE, GLOBAL):
        _value(reader)
    if kind == GLOBAL:
        reader.byte()  # whether it may change
    else:
        for _ in range(1 + (reader.byte() & _HAS_MAXIMUM)):
            reader.number()
    return Imported(module, name, None)


def _exported(reader: ByteReader, functions: list[Signature]) -> tuple[str, Exported]:
    name, kind, index = reader.name(), reader.byte(), reader.number()
    return name, Exported(kind, functions[index] if kind == FUNCTION else None)
