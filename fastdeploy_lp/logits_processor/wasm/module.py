"""A module's bytes, and what the file says about itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.limits import MAX_MODULE_BYTES
from fastdeploy_lp.logits_processor.wasm.schema import model_of
from fastdeploy_lp.request.limits import MAX_REWIND

SUFFIX = ".wasm"
MAGIC = b"\0asm\x01\0\0\0"
SECTION = "logits_processor"
"""Custom section with a JSON object: `description`; `parameters`, the JSON Schema of a request's arguments; and
`max_rewind`, the most tokens that it takes back at once."""

MAX_DESCRIPTION = 2000


@dataclass(frozen=True, eq=False)
class WasmModule:
    """A module as a file has it. name: the file's, for a processor without an alias."""

    name: str
    content: bytes

    @classmethod
    def read(cls, path: Path) -> WasmModule:
        """Reads a file, with the JSON Schema of a file next to it, `NAME.json`, if its own section is missing.

        Raises WasmError for a file that cannot be read, is too large, or is no WebAssembly.
        """
        try:
            with path.open("rb") as file:
                content = file.read(MAX_MODULE_BYTES + 1)
            beside = path.with_suffix(".json")
            about = beside.read_bytes() if beside.is_file() else None
        except OSError as error:
            raise WasmError(f"cannot be read: {error.strerror}") from None
        module = cls(path.stem, require_wasm(content))
        if about is not None and module.section is None:
            module = cls(path.stem, with_section(content, about))
        return module

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes, in hexadecimal digits."""
        return sha256(self.content).hexdigest()

    @cached_property
    def section(self) -> bytes | None:
        """Content of its section about itself, None if it has none."""
        return next((content for name, content in custom_sections(self.content) if name == SECTION), None)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The object in its section; raises WasmError for anything else."""
        if self.section is None:
            return {}
        try:
            found = json.loads(self.section)
        except (ValueError, RecursionError):
            raise WasmError(f"its section {SECTION} is no JSON") from None
        if not isinstance(found, dict) or not found.keys() <= {"description", "parameters", "max_rewind"}:
            raise WasmError(f"its section {SECTION} must be an object with description, parameters and max_rewind")
        if not isinstance(found.get("description", ""), str):
            raise WasmError(f"its section {SECTION}: description must be text")
        most = found.get("max_rewind", 0)
        if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MAX_REWIND:
            raise WasmError(f"its section {SECTION}: max_rewind must be an integer from 0 to {MAX_REWIND}")
        return found

    @property
    def description(self) -> str:
        """Its description of itself, empty if it has none."""
        return str(self.about.get("description", ""))[:MAX_DESCRIPTION]

    @property
    def max_rewind(self) -> int:
        """The most tokens that it takes back at once, 0 if it declares none."""
        return int(self.about.get("max_rewind", 0))

    @cached_property
    def params_model(self) -> type[BaseModel] | None:
        """Pydantic model of its arguments, None if it declares none; raises WasmError for a schema that is not usable.

        Such a module receives any arguments.
        """
        schema = self.about.get("parameters")
        return None if schema is None else model_of(self.name, schema)


def require_wasm(content: bytes) -> bytes:
    """Returns the bytes of a module; raises WasmError for other ones, and for too many."""
    if len(content) > MAX_MODULE_BYTES:
        raise WasmError(f"is larger than {MAX_MODULE_BYTES} bytes")
    if content[: len(MAGIC)] != MAGIC:
        raise WasmError("is no WebAssembly module (of version 1): it has another head")
    return content


def custom_sections(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of each custom section; stops at the first section that is damaged."""
    place = len(MAGIC)
    while place < len(content):
        kind = content[place]
        size, begin = _number(content, place + 1)
        if size is None or begin + size > len(content):
            return
        place = begin + size
        if kind == 0:
            length, text = _number(content, begin)
            if length is None or text + length > place:
                return
            yield content[text : text + length].decode("utf-8", "replace"), content[text + length : place]


def with_section(content: bytes, about: bytes) -> bytes:
    """Returns a module with a section about itself at its end."""
    name = SECTION.encode()
    body = _encoded(len(name)) + name + about
    return content + b"\0" + _encoded(len(body)) + body


def _number(content: bytes, place: int) -> tuple[int | None, int]:
    """Returns the LEB128 number at this place, None if there is none, and the place after it."""
    value = 0
    for shift in range(0, 35, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    return None, place


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
