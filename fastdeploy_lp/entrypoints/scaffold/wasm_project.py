"""The folder of a new logits processor in WebAssembly: its source, its Makefile and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from fastdeploy_lp.entrypoints.scaffold.package import path_of, require_name, written
from fastdeploy_lp.logits_processor.wasm.header import HEADER, header_text

LANGUAGES = ("c", "rust", "assemblyscript", "wat")


@dataclass(frozen=True)
class WasmProject:
    """A folder to write, in which `make` builds `name`.wasm. Raises ValueError for an invalid name or language."""

    name: str
    language: str = "c"

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"language: {self.language!r} is none of {', '.join(LANGUAGES)}")
        require_name(self.name)

    @property
    def module(self) -> str:
        """Name of the module's file."""
        return self.name.replace("-", "_")

    def files(self) -> dict[str, str]:
        """Returns the files: path below the folder → contents."""
        values = {"name": self.module, "language": self.language}
        made = {HEADER: header_text()} if self.language == "c" else {}
        for folder in ("wasm", f"wasm-{self.language}"):
            for template in files(__package__).joinpath("templates", folder).iterdir():
                made[path_of(template.name, self.module)] = Template(template.read_text()).substitute(values)
        return made

    def write(self, directory: Path) -> Path:
        """Writes the files into a new folder `directory`/name and returns it; raises FileExistsError if it exists."""
        return written(self.files(), directory / self.name)
