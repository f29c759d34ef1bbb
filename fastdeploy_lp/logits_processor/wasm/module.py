"""A module's bytes, and what the file says about itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.wasm.binary import MAGIC, custom_sections, with_custom_section
from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.limits import MAX_MODULE_BYTES
from fastdeploy_lp.logits_processor.wasm.schema import model_of
from fastdeploy_lp.request.limits import MAX_REWIND

SUFFIX = ".wasm"
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


def with_section(content: bytes, about: bytes) -> bytes:
    """Returns a module with a section about itself at its end."""
    return with_custom_section(content, SECTION, about)
