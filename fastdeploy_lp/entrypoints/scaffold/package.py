"""The package of a new logits processor: its name, its files and their paths."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from fastdeploy_lp.logits_processor import BUILTIN

DIALECTS = ("native", "vllm-mrv2", "vllm-v1", "request", "plugin", "torch")
MAX_LENGTH = 64
NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
SUFFIX = ".tmpl"


@dataclass(frozen=True)
class ProcessorPackage:
    """A package to write. Requests select the processor by `name`.

    Raises ValueError for an invalid name or dialect.
    """

    name: str
    dialect: str = "native"

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect: {self.dialect!r} is none of {', '.join(DIALECTS)}")
        require_name(self.name)
        if keyword.iskeyword(self.module) or self.module in sys.stdlib_module_names or self.module in BUILTIN:
            raise ValueError(f"name: {self.module} means something in Python already; choose another")
        if importlib.util.find_spec(self.module) is not None:
            raise ValueError(f"name: a module {self.module} is installed here already; choose another")

    @property
    def module(self) -> str:
        """The importable name, which is also the name of the entry point."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The name of the processor's class."""
        return "".join(part.capitalize() for part in self.module.split("_"))

    @property
    def target(self) -> str:
        """The object that the entry point names, in the module `processor`."""
        return "LOGITS_PROCESSOR_PLUGIN" if self.dialect == "plugin" else self.class_name

    def files(self) -> dict[str, str]:
        """Returns the files: path below the package's folder → contents."""
        values = {
            "name": self.module,
            "distribution": self.name.replace("_", "-"),
            "class_name": self.class_name,
            "target": self.target,
            "dialect": self.dialect,
            "dependencies": ', "torch>=2.4", "transformers>=5"' if self.dialect == "torch" else "",
        }
        made = {}
        for folder in ("common", self.dialect):
            for template in files(__package__).joinpath("templates", folder).iterdir():
                path = path_of(template.name, self.module)
                made[path] = Template(template.read_text()).substitute(values)
        return made

    def write(self, directory: Path) -> Path:
        """Writes the files into a new folder `directory`/name and returns it; raises FileExistsError if it exists."""
        return written(self.files(), directory / self.name)


def require_name(name: str) -> None:
    """Raises ValueError for an invalid name."""
    if not NAME.fullmatch(name) or len(name) > MAX_LENGTH:
        allowed = "small letters, digits and single hyphens or underscores between them, such as my-processor"
        raise ValueError(f"name: {name!r} is not allowed; it has {allowed}, at most {MAX_LENGTH} characters")


def written(contents: Mapping[str, str], folder: Path) -> Path:
    """Writes files, by their path, into a new folder and returns it; raises FileExistsError if it exists."""
    folder.mkdir(parents=True)
    for path, content in sorted(contents.items()):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(content)
    return folder


def path_of(template: str, module: str) -> str:
    """Returns the path for a template's text; `__` in the template's name means a slash."""
    path = template.removesuffix(SUFFIX).replace("__", "/").replace("MODULE", module)
    return path.replace("INIT.py", "__init__.py")
