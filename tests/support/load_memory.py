"""Loads random models in this process and prints how much memory that takes, as JSON: `load_memory FOLDER`.

To be run in the environment of a worker, whose allocator keeps what is freed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from support.server import REPOSITORY

MEBIBYTE = 1024
# 50 million weights. The vocabulary is large: three quarters of them are the embedding's.
SIZES = {"hidden": 768, "inner": 2048, "layers": 2, "heads": 12, "kv_heads": 4}
EMBEDDING_MEBIBYTES = 49152 * 768 * 4 / (1 << 20)
KINDS = ("Q4_K_M", "Q4_1")
BF16 = "BF16"
PRECISIONS = (None, "w8a8")

_Made = TypeVar("_Made")


def load_program(name: str) -> Any:
    """A program of `benchmarks`, which is a folder and no package."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", REPOSITORY / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def memory(field: str) -> float:
    """A field of this process's status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / MEBIBYTE


def measured(make: Callable[[], _Made]) -> tuple[_Made, dict[str, float]]:
    """The result of `make`; its peak and the memory that it keeps, in MiB above the memory in use before."""
    before = memory("VmRSS")
    # The peak counts from here on.
    Path("/proc/self/clear_refs").write_text("5")
    made = make()
    return made, {"peak": memory("VmHWM") - before, "kept": memory("VmRSS") - before}


def main(folder: Path) -> None:
    """Convert and load every kind of file in every precision."""
    from fastdeploy_lp.checkpoint.convert import convert_gguf
    from fastdeploy_lp.model_executor.causal_lm import load_causal_lm
    from fastdeploy_lp.startup.engine_args import EngineArgs

    random_model = load_program("random_model")
    sizes = random_model.Sizes(**SIZES)

    def load(directory: Path, precision: str | None) -> dict[str, float]:
        args = EngineArgs(str(directory), quantization=precision, max_num_seqs=1, max_model_len=64)
        config = args.create_fd_config(show_progress=False)
        return measured(lambda: load_causal_lm(config))[1]

    directories: dict[str, Path] = {}
    found: dict[str, Any] = {"conversions": {}, "loads": {}}
    for kind in KINDS:
        source, directories[kind] = folder / f"{kind}.gguf", folder / kind
        random_model.write_gguf(source, sizes, kind)
        directories[kind].mkdir()
        converted = measured(lambda: convert_gguf(source, directories[kind], show_progress=False))[1]  # noqa: B023
        found["conversions"][kind] = converted
    directories[BF16] = folder / BF16
    random_model.write_bfloat16(directories["Q4_1"], directories[BF16])
    # The first of everything: libraries, threads and their stacks.
    load(directories["Q4_1"], None)
    for kind, directory in directories.items():
        for precision in PRECISIONS:
            found["loads"][f"{kind} {precision}"] = load(directory, precision)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
