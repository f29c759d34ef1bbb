"""Which module of a package names which other one: by imports, those for type checkers included, and in strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """The modules of a package, of which `root` is the folder."""

    root: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Files by module name."""
        return {self.module_of(path): path for path in sorted(self.root.rglob("*.py"))}

    def module_of(self, path: Path) -> str:
        """Returns the dotted name of a file's module."""
        parts = [self.root.name, *path.relative_to(self.root).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def home_of(self, name: str) -> str | None:
        """Returns the module that holds a dotted name: the name itself or a parent; None for another package's."""
        while name not in self.modules and "." in name:
            name = name.rpartition(".")[0]
        return name if name in self.modules else None

    def imports(self, path: Path, nodes: Sequence[ast.AST]) -> set[str]:
        """Returns the dotted names that import statements of the file may load, in functions and for types too."""
        module = self.module_of(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        return {name for node in nodes for name in imported_names(node, package)}

    def strings(self, tree: ast.Module, nodes: Sequence[ast.AST]) -> set[str]:
        """Returns the dotted names of modules, and of classes in them, that the file holds in strings.

        These are arguments of `import_module` and of `python -m`, and names such as "module:Class".
        """
        constants = dict(_constants(tree))
        whole = re.compile(rf"({self.root.name}(?:\.\w+)+?)(?:[:.]([A-Z]\w*))?")
        found = set()
        for node in nodes:
            match = whole.fullmatch(_text(node, constants))
            if match and match[1] in self.modules:
                found.add(match[1])
        return found

    @cached_property
    def names(self) -> dict[Path, set[str]]:
        """What each file imports or holds in strings."""
        return {path: self._names_in(path) for path in self.modules.values()}

    def _names_in(self, path: Path) -> set[str]:
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        return self.imports(path, nodes) | self.strings(tree, nodes)


@dataclass
class FolderGraph:
    """The direct files and folders of one folder; a folder stands for everything below it.

    reasons: for each edge, "module -> module" pairs that make it.
    """

    folder: str
    reasons: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def cycle(self) -> list[str] | None:
        """Returns the reasons of one cycle that passes a folder; None if there is none."""
        followers: dict[str, set[str]] = {}
        for start, end in self.reasons:
            followers.setdefault(start, set()).add(end)
        for start in sorted(followers):
            if not start.endswith(".py"):
                way = _way_back(start, followers)
                if way:
                    return [self.reasons[edge][0] for edge in pairwise(way)]
        return None


def folder_graphs(package: Package, left_out: Mapping[str, str]) -> Iterator[FolderGraph]:
    """Yields the graph of each folder.

    left_out: by file, the start of the names that do not count. The package's own `__init__.py` does not count either:
    it is what other packages import.
    """
    places = {module: path.relative_to(package.root).parts for module, path in package.modules.items()}
    edges = [edge for module, path in package.modules.items() for edge in _edges(package, module, path, left_out)]
    for folder in sorted({place[:-1] for place in places.values()}):
        graph = FolderGraph(str(Path(*folder)))
        for start, end in edges:
            first, second = _child(places[start], folder), _child(places[end], folder)
            if first and second and first != second:
                graph.reasons.setdefault((first, second), []).append(f"{start} -> {end}")
        yield graph


def imported_names(node: ast.AST, package: str) -> Iterator[str]:
    """Yields the dotted names that an import statement may load."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        base = parts[: len(parts) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _edges(package: Package, module: str, path: Path, left_out: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    ignored = tuple(start for place, start in left_out.items() if path.is_relative_to(package.root / place))
    if module == package.root.name:
        return
    for name in sorted(package.names[path]):
        home = package.home_of(name)
        if home not in (None, module, package.root.name) and not (ignored and name.startswith(ignored)):
            yield module, str(home)


def _child(place: tuple[str, ...], folder: tuple[str, ...]) -> str | None:
    return place[len(folder)] if place[: len(folder)] == folder else None


def _way_back(start: str, followers: Mapping[str, set[str]]) -> list[str] | None:
    """The shortest way from `start` to itself."""
    ways, seen = [[start]], set()
    while ways:
        way = ways.pop(0)
        for follower in sorted(followers.get(way[-1], ())):
            if follower == start:
                return [*way, follower]
            if follower not in seen:
                seen.add(follower)
                ways.append([*way, follower])
    return None


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Strings that are assigned to names of the module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name))


def _text(node: ast.AST, constants: Mapping[str, str]) -> str:
    """A string, or an f-string of strings and names of the module; empty for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, constants) for each in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        # A name that is only known at run time stands for a class.
        return constants.get(node.value.id, "X")
    return ""
