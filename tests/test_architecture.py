"""Who may import whom, and who gets by without Paddle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support.import_graph import Package, folder_graphs, imported_names

import fastdeploy_lp

PACKAGE = Path(fastdeploy_lp.__file__).parent
NAME = "fastdeploy_lp"
WHOLE = Package(PACKAGE)

# What no file below a part of the package may import or name in a string, type annotations included.
FORBIDDEN = {
    "engine": ["worker", "entrypoints", "model_executor"],
    "worker": ["engine", "entrypoints"],
    "model_executor": ["engine", "entrypoints", "worker"],
    "logits_processor": ["engine", "worker", "entrypoints", "model_executor"],
    "platforms": ["engine", "worker", "entrypoints", "model_executor"],
    "plugins": ["engine", "worker", "entrypoints", "model_executor", "logits_processor", "platforms"],
    "checkpoint": ["engine", "worker", "entrypoints", "model_executor", "logits_processor"],
    "entrypoints": ["worker", "model_executor"],
    "guided_decoding": ["engine", "worker", "entrypoints", "model_executor", "logits_processor"],
    "messages.py": ["engine", "worker", "entrypoints", "model_executor"],
    "config": ["engine", "worker", "entrypoints", "model_executor", "platforms", "startup"],
    "startup": ["engine", "worker", "entrypoints", "model_executor"],
    "request": ["engine", "worker", "entrypoints", "model_executor", "logits_processor", "config"],
    "stats.py": ["engine", "worker", "entrypoints", "model_executor"],
}
# What may be named all the same, and from where.
EXCEPTIONS = {
    # The builtin processors and WebAssembly modules edit rows with the sampler's operators.
    "logits_processor/builtin": "model_executor.ops",
    "logits_processor/dialects/wasm.py": "model_executor.ops",
    # Programs that run in another process.
    "engine/client/supervisor.py": "worker",
    "entrypoints/cli/collect_env.py": "model_executor.ops",
    # The names that the modules of vLLM provide: authors' files import them, never the package.
    "logits_processor/vllm_compat/installation.py": "entrypoints.vllm_engine",
}

# Parts that run without Paddle: what they import while they are imported is looked at.
WITHOUT_PADDLE = (
    "config",
    "startup",
    "request",
    "messages.py",
    "stats.py",
    "engine",
    "entrypoints",
    "guided_decoding",
    "logits_processor",
    "openai",
    "platforms",
    "plugins",
    "model_executor/models/registry.py",
    "checkpoint",
)


# Who may ask on which device it runs, and what such a question looks like.
ASKING = ("platforms", "model_executor/layers")
DEVICE_QUESTIONS = {
    *("is_compiled_with_cuda", "is_compiled_with_rocm", "is_compiled_with_xpu", "is_compiled_with_custom_device"),
    *("get_device", "device_count", "get_device_capability", "get_device_properties", "is_cuda_graph_supported"),
    *("CPUPlace", "CUDAPlace", "CUDAPinnedPlace", "XPUPlace", "CustomPlace", "CpuPlatform", "GpuPlatform"),
    *("is_cpu_place", "is_gpu_place", "is_cuda_pinned_place"),
}
DEVICES = {"cpu", "gpu", "cuda"}


def files_below(part: str) -> list[Path]:
    path = PACKAGE / part
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    assert files, part
    return files


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@dataclass(frozen=True)
class Seen:
    """What several tests ask of a file, which is parsed once for all of them."""

    docstring: str | None
    imports: set[str]
    questions: list[str]


@cache
def seen_in(path: Path) -> Seen:
    tree = ast.parse(path.read_text())
    return Seen(ast.get_docstring(tree), imports_at_import(tree, path), list(device_questions(tree)))


def imports_at_import(tree: ast.Module, path: Path) -> set[str]:
    """What the file imports at once: neither for type checkers alone nor inside a function."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        found.update(imported_names(node, WHOLE.module_of(path)))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_for_type_checkers(node):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("part", FORBIDDEN)
def test_arrows_between_the_parts_run_one_way(part: str) -> None:
    for path in files_below(part):
        allowed = tuple(
            f"{NAME}.{other}" for place, other in EXCEPTIONS.items() if path.is_relative_to(PACKAGE / place)
        )
        for name in WHOLE.names[path]:
            if allowed and name.startswith(allowed):
                continue
            for other in FORBIDDEN[part]:
                forbidden = f"{NAME}.{other}"
                assert name != forbidden, path
                assert not name.startswith(f"{forbidden}."), path


def test_no_folder_imports_itself_by_way_of_others() -> None:
    """In every folder, its files and folders (each with all that is below it) form no cycle with a folder."""
    left_out = {place: f"{NAME}.{other}" for place, other in EXCEPTIONS.items()}
    cycles = {graph.folder: graph.cycle() for graph in folder_graphs(WHOLE, left_out)}
    assert {folder: cycle for folder, cycle in cycles.items() if cycle} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from house.attic import hat",
        "import house.attic.hat",
        "if TYPE_CHECKING:\n    from house.attic.hat import Hat",
        "def wear():\n    from ..attic import hat",
        "HAT = 'house.attic.hat:Hat'",
        "HAT = 'house.attic.hat.Hat'",
        "import_module('house.attic.hat')",
        "subprocess.run([sys.executable, '-m', 'house.attic'])",
        "ATTIC = 'house.attic'\nHAT = f'{ATTIC}.hat:Hat'",
        "ATTIC = 'house.attic.hat'\nhats = [f'{ATTIC}:{name}' for name in names]",
    ],
)
def test_a_cycle_is_seen_however_the_other_folder_is_named(line: str, tmp_path: Path) -> None:
    house = tmp_path / "house"
    for file, text in {
        "__init__.py": "from house.attic.hat import Hat",
        "attic/__init__.py": "",
        "attic/hat.py": "from house.cellar import wine",
        "cellar/__init__.py": "",
        "cellar/wine.py": line,
    }.items():
        (house / file).parent.mkdir(parents=True, exist_ok=True)
        (house / file).write_text(text)
    (cycle,) = [found for graph in folder_graphs(Package(house), {}) if (found := graph.cycle())]
    assert cycle[0].startswith("house.attic.hat -> house.cellar")
    (house / "cellar/wine.py").write_text("LOGGER = 'house.attics'\nTEXT = 'see house.attic.hat'")
    assert not any(graph.cycle() for graph in folder_graphs(Package(house), {}))


@pytest.mark.parametrize("part", WITHOUT_PADDLE)
def test_parts_of_the_api_process_import_paddle_only_where_a_tensor_is_made(part: str) -> None:
    for path in files_below(part):
        assert not {name for name in seen_in(path).imports if name.split(".")[0] == "paddle"}, path


def test_the_parts_that_may_not_import_each_other_are_all_there() -> None:
    for part in {*FORBIDDEN, *WITHOUT_PADDLE}:
        assert (PACKAGE / part).exists(), part


@pytest.mark.parametrize(
    "module",
    [
        "fastdeploy_lp",
        "fastdeploy_lp.messages",
        "fastdeploy_lp.entrypoints.llm",
        "fastdeploy_lp.entrypoints.cli",
        "fastdeploy_lp.entrypoints.openai.api_server",
        "fastdeploy_lp.openai.logits_processor",
    ],
)
def test_the_api_process_starts_without_paddle_and_without_the_worker(module: str) -> None:
    program = (
        f"import sys, {module}; "
        "print([name for name in sys.modules if name == 'paddle' or name.startswith('fastdeploy_lp.worker')])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_module_says_what_it_is_for() -> None:
    for path in files_below("."):
        assert seen_in(path).docstring, path


def device_questions(tree: ast.Module) -> Iterator[str]:
    """What of the file asks which device it runs on: by a name of Paddle's or ours, or by comparing with a device."""
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in DEVICE_QUESTIONS:
            yield name
        if isinstance(node, ast.Compare):
            yield from (
                str(each.value)
                for part in (node.left, *node.comparators)
                for each in ast.walk(part)
                if isinstance(each, ast.Constant) and each.value in DEVICES
            )


def test_only_platforms_and_layers_ask_which_device_they_run_on() -> None:
    for path in files_below("."):
        if not any(path.is_relative_to(PACKAGE / part) for part in ASKING):
            assert seen_in(path).questions == [], path


def test_questions_about_the_device_are_seen() -> None:
    for question, what in (
        ("paddle.is_compiled_with_cuda()", "is_compiled_with_cuda"),
        ("logits.place.is_gpu_place()", "is_gpu_place"),
        ("platform.name == 'gpu'", "gpu"),
        ("name in ('cpu', 'xpu')", "cpu"),
        ("isinstance(platform, GpuPlatform)", "GpuPlatform"),
    ):
        assert list(device_questions(ast.parse(question))) == [what]
    assert list(device_questions(ast.parse("platform.runs_compiled_ops and in_host_memory(logits)"))) == []
