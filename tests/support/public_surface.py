"""What users and other packages may rely on: import paths, command-line options, HTTP fields and metric names.

`python tests/support/public_surface.py` adds the tree's names to `tests/data/public_surface.json` and removes none: a
name that goes is removed from that file by hand, and the changelog says why.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import httpx

import fastdeploy_lp
from fastdeploy_lp.entrypoints.cli import main as command
from fastdeploy_lp.entrypoints.cli.command import SUBCOMMANDS
from support.server import REPOSITORY, TESTS, ServerProcess, server_environment
from support.tiny import write_tiny_checkpoint

# By kind and by place, the names there: {"imports": {"fastdeploy_lp": ["LLM", ...]}, ...}.
Surface = dict[str, dict[str, list[str]]]

DATA = TESTS / "data" / "public_surface.json"
PACKAGE = "fastdeploy_lp"
# Modules whose public names are promised whether or not a document prints them.
PROMISED = (
    PACKAGE,
    f"{PACKAGE}.config",
    f"{PACKAGE}.entrypoints.cli",
    f"{PACKAGE}.logits_processor",
    f"{PACKAGE}.logits_processor.testing",
    f"{PACKAGE}.openai.logits_processor",
    f"{PACKAGE}.pytest_plugin",
    f"{PACKAGE}.request.trace",
)
# Names of further modules that a document lists without printing their import.
LISTED = {
    f"{PACKAGE}.entrypoints.async_llm": {"AsyncLLM"},
    f"{PACKAGE}.entrypoints.llm": {"LLM"},
    f"{PACKAGE}.entrypoints.openai.api_server": {"main"},
    f"{PACKAGE}.logits_processor.phrase": {"Marker", "Phrase", "PhraseForms", "SentenceEnds"},
}
# Patterns of files that print imports: documents, examples, templates, and what reference documents print.
PRINTING = (
    *("README.md", "SECURITY.md", "docs/**/*.md", "examples/**/*.md", "examples/**/*.py", "configs/**/*.yaml"),
    *("fastdeploy_lp/**/*.tmpl", "tests/test_reference_documents.py", "tests/support/documents*.py"),
)
# Pages for developers of this package: what they name may move.
INTERNAL_PAGES = ("docs/internals/", "docs/architecture.md")

_FROM = re.compile(rf"from ({PACKAGE}[\w.]*) import (\([^)]*\)|[^\n`]+)")
_DOTTED = re.compile(rf"\b{PACKAGE}(?:\.\w+)+(?::\w+)?")
_PATH = re.compile(r"[\s`\d](/[a-z][\w/]*\w)")
_VARIABLE = re.compile(r"\bFASTDEPLOY_LP_[A-Z_]+\b")
_STAND_INS = """
import json, sys
from fastdeploy_lp.logits_processor import fastdeploy_compat, vllm_compat
fastdeploy_compat.install()
vllm_compat.install()
roots = ("vllm", "fastdeploy", "paddleformers")
found = {name: dir(module) for name, module in sys.modules.items() if name.split(".")[0] in roots}
print(json.dumps({name: [each for each in names if not each.startswith("_")] for name, names in found.items()}))
"""


def surface(known: Surface) -> Surface:
    """Returns every promised name of this tree and those of the known names that still work; starts a server."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as server:
        return {
            "imports": _sorted(imports(known.get("imports", {}))),
            "stand_ins": _sorted(stand_ins()),
            "parameters": _sorted(parameters()),
            "options": _sorted(options()),
            "entry_points": _sorted(entry_points()),
            "environment": {"variables": sorted(variables(known.get("environment", {}).get("variables", ())))},
            "http": _sorted(http_fields(httpx.get(f"{server.url}/openapi.json", timeout=60.0).json())),
            "pages": {"GET": sorted(pages(server, known.get("pages", {}).get("GET", ())))},
            "metrics": _sorted(metrics(httpx.get(server.metrics_url).text)),
        }


def imports(known: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Returns the names of each module that documents, examples and templates import, and of the promised modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, names in (*LISTED.items(), *known.items()):
        loaded = _module(name)
        if loaded is not None:
            found[name] |= {each for each in names if hasattr(loaded, each)}
    for name in PROMISED:
        found[name] |= _public_names(import_module(name))
    for text in printing_texts():
        for module, names in _FROM.findall(text):
            if _module(module) is not None:
                found[module] |= {each for each in _imported(names) if hasattr(_module(module), each)}
        for dotted in _DOTTED.findall(text):
            _add_dotted(found, dotted)
    return found


def stand_ins() -> dict[str, set[str]]:
    """Returns the names of each module of other packages that `--vllm-compat` and `--fastdeploy-compat` provide."""
    ran = subprocess.run(
        [sys.executable, "-c", _STAND_INS], capture_output=True, text=True, check=True, env=server_environment()
    )
    return {module: set(names) for module, names in json.loads(ran.stdout).items()}


def parameters() -> dict[str, set[str]]:
    """Returns the parameters of each class of `fastdeploy_lp.__all__` and of its public methods."""
    found: dict[str, set[str]] = {}
    for name in fastdeploy_lp.__all__:
        cls = getattr(fastdeploy_lp, name)
        if not inspect.isclass(cls):
            continue
        members: list[tuple[str, Any]] = [("", cls), *inspect.getmembers(cls, callable)]
        for member, function in members:
            if not member.startswith("_"):
                with contextlib.suppress(ValueError, TypeError):
                    found[f"{name}.{member}".rstrip(".")] = set(inspect.signature(function).parameters) - {"self"}
    return found


def options() -> dict[str, set[str]]:
    """Returns the options and positional arguments of the command and of each subcommand."""
    top = _parser_of([])
    subcommands = [each.name for each in SUBCOMMANDS]
    found = {"": {*subcommands, *_names(top)}}
    for subcommand in subcommands:
        # With a URL some subcommands have options for a server instead of a model.
        found[subcommand] = {*_names(_parser_of([subcommand])), *_names(_parser_of([subcommand, "--url", "http://a"]))}
    return found


def entry_points() -> dict[str, set[str]]:
    """Returns the package's own entry points, by group, and the groups in which it finds plugins."""
    (call,) = [
        node
        for node in ast.walk(ast.parse((REPOSITORY / "setup.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setup"
    ]
    own = next(ast.literal_eval(each.value) for each in call.keywords if each.arg == "entry_points")
    from fastdeploy_lp.plugins import PluginGroup

    return {**{group: set(points) for group, points in own.items()}, "groups": {group.value for group in PluginGroup}}


def variables(known: Iterable[str]) -> set[str]:
    """Returns the environment variables that documents name and the package reads."""
    read = {
        name
        for path in (REPOSITORY / PACKAGE).rglob("*.py")
        for name in _VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    return read & {*known, *(name for text in printing_texts() for name in _VARIABLE.findall(text))}


def http_fields(document: dict[str, Any]) -> dict[str, set[str]]:
    """Returns, by operation, its parameters and the fields of its body and of its answers; all errors are one place.

    A field has its path: `messages[].role`; `.*` is any key of a mapping.
    """
    found: dict[str, set[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            found[name] = {each["name"] for each in operation.get("parameters", ())}
            for form in operation.get("requestBody", {}).get("content", {}).values():
                found[name] |= set(_fields(document, form.get("schema", {})))
            for status, answer in operation["responses"].items():
                for media, form in answer.get("content", {}).items():
                    schema = form.get("schema") or form.get("itemSchema", {})
                    place = f"{name} -> {media}" if status < "4" else "errors"
                    found.setdefault(place, set()).update(_fields(document, schema))
    return found


def pages(server: ServerProcess, known: Iterable[str]) -> Iterator[str]:
    """Yields the paths that documents print and the server answers, in and out of its schema."""
    printed = {path for text in printing_texts() for path in _PATH.findall(text)}
    for path in {*printed, *known}:
        if httpx.get(f"{server.url}{path}").status_code == 200:
            yield path


def metrics(exposition: str) -> dict[str, set[str]]:
    """Returns the names of the metrics, by type; without the times at which the client library created them."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", exposition, re.MULTILINE):
        if not name.endswith("_created"):
            found[kind].add(name)
    return found


def printing_texts() -> Iterator[str]:
    """Yields the texts of the files that print what users write."""
    for pattern in PRINTING:
        for path in REPOSITORY.glob(pattern):
            if not str(path.relative_to(REPOSITORY)).startswith(INTERNAL_PAGES):
                yield path.read_text(encoding="utf-8")


def _server(folder: Path) -> ServerProcess:
    model = write_tiny_checkpoint(folder)
    log = str(folder / "requests.jsonl")
    declared = ("--logits-processors", "LogitBiasLogitsProcessor")
    return ServerProcess("--playground", "--request-log", log, *declared, model=str(model), own_metrics_port=False)


def _sorted(names: dict[str, set[str]]) -> dict[str, list[str]]:
    return {place: sorted(names[place]) for place in sorted(names)}


def _public_names(module: ModuleType) -> set[str]:
    """Names in `__all__`, or else those of the module's own classes and functions."""
    listed = getattr(module, "__all__", None)
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return set(listed) if listed is not None else {name for name in own if not name.startswith("_")}


def _module(name: str) -> Any:
    """The module, or None; a name's module may fail to import for want of an optional package."""
    try:
        return import_module(name.rstrip("."))
    except ImportError:
        return None


def _imported(names: str) -> Iterator[str]:
    for line in names.strip("()").splitlines():
        for each in line.partition("#")[0].split(","):
            name = each.split(" as ")[0].strip()
            if name.isidentifier():
                yield name


def _add_dotted(found: dict[str, set[str]], dotted: str) -> None:
    """Adds a module, or a name in a module, that text mentions; skips metric and logger names."""
    module, _, name = dotted.partition(":")
    if not name and _module(module) is None:
        module, _, name = module.rpartition(".")
    loaded = _module(module)
    if loaded is not None and (not name or hasattr(loaded, name)):
        found[module] |= {name} - {""}


def _parser_of(argv: list[str]) -> argparse.ArgumentParser:
    """The parser that the command uses for these arguments, which it does not parse."""

    class Captured(BaseException):
        parser: argparse.ArgumentParser

    def capture(self: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        captured = Captured()
        captured.parser = self
        raise captured

    usual: Callable[..., Any] = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = capture  # type: ignore[method-assign]
    try:
        command(argv)
    except Captured as captured:
        return captured.parser
    finally:
        argparse.ArgumentParser.parse_known_args = usual  # type: ignore[method-assign]
    raise RuntimeError(f"fastdeploy-lp {' '.join(argv)}: parsed no options")


def _names(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings or [action.dest]}


def _fields(
    document: dict[str, Any], schema: dict[str, Any], path: str = "", seen: tuple[str, ...] = ()
) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from _fields(document, document["components"]["schemas"][name], path, (*seen, name))
        return
    for member in (each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ())):
        yield from _fields(document, member, path, seen)
    if isinstance(schema.get("items"), dict):
        yield from _fields(document, schema["items"], f"{path}[]", seen)
    if isinstance(schema.get("contentSchema"), dict):
        yield from _fields(document, schema["contentSchema"], path, seen)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _fields(document, schema["additionalProperties"], f"{path}.*".lstrip("."), seen)
    for name, inner in schema.get("properties", {}).items():
        field = f"{path}.{name}".lstrip(".")
        yield field
        yield from _fields(document, inner, field, seen)


def recorded() -> Surface:
    """Returns the promised names on record."""
    names: Surface = json.loads(DATA.read_text())
    return names


def _add_to_record() -> None:
    before: Surface = recorded() if DATA.exists() else {}
    joined = {
        kind: _sorted(
            {
                place: {*before.get(kind, {}).get(place, ()), *places.get(place, ())}
                for place in {*before.get(kind, {}), *places}
            }
        )
        for kind, places in surface(before).items()
    }
    DATA.write_text(json.dumps(joined, indent=1) + "\n")


if __name__ == "__main__":
    _add_to_record()
