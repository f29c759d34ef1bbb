"""Seconds and memory of a model's load: the first start, which converts a GGUF file, and later ones.

Every start is a process of its own with a worker of its own. ``benchmarks/README.md`` says what is measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import random_model
from soak_memory import status_mb

from fastdeploy_lp import LLM
from fastdeploy_lp.checkpoint.cache import cache_root
from fastdeploy_lp.checkpoint.convert import convert_gguf

PRECISIONS = ("float32", "w8a8", "w8a16")
BF16 = "BF16"
CACHE = "cache"
COLUMNS = (
    "file",
    "precision",
    "start",
    "seconds",
    "of these the load",
    "peak, MB",
    "kept, MB",
    "peak / kept",
    "API, MB",
)


def main() -> int:
    """Print a table of all files and precisions."""
    options = _parser().parse_args()
    if options.measure:
        return _measure(options.measure, options.precisions[0])
    sizes = random_model.Sizes(256, 512, 2, 4, 2) if options.smoke else random_model.Sizes()
    kinds, precisions = (["Q4_K_M"], ["float32"]) if options.smoke else (options.kinds, options.precisions)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        _share_operators(Path(folder) / CACHE)
        for kind in kinds:
            model = _write(Path(folder), kind, sizes)
            for number, precision in enumerate(precisions):
                first = number == 0 and kind != BF16
                for start in ("first", "later") if first else ("later",):
                    _print_row(kind, precision, start, _start(model, precision, Path(folder)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = [*random_model.KINDS, BF16]
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=["Q4_K_M"], help="files of 1.07 billion weights")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--directory", type=Path, help="where there is room for the files (default: the system's)")
    parser.add_argument("--smoke", action="store_true", help="a small model, to see that the program runs")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser


def _share_operators(cache: Path) -> None:
    """Let the new cache have the compiled operators of the usual one, so that no start compiles them."""
    cache.mkdir()
    if (operators := cache_root() / "ops").is_dir():
        (cache / "ops").symlink_to(operators)


def _write(folder: Path, kind: str, sizes: random_model.Sizes) -> Path:
    """The GGUF file, or for bfloat16 the directory made of one."""
    if kind != BF16:
        path = folder / f"{kind}.gguf"
        random_model.write_gguf(path, sizes, kind)
        return path
    random_model.write_gguf(folder / "source.gguf", sizes, "Q8_0")
    converted = folder / "converted"
    converted.mkdir()
    convert_gguf(folder / "source.gguf", converted, show_progress=False)
    random_model.write_bfloat16(converted, folder / BF16)
    return folder / BF16


def _start(model: Path, precision: str, folder: Path) -> dict[str, Any]:
    environment = os.environ | {"FASTDEPLOY_LP_CACHE": str(folder / CACHE)}
    command = [sys.executable, __file__, "--measure", str(model), "--precisions", precision]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"seconds": found["ready"] - began}


class _LoadSeconds(logging.Handler):
    """Keeps what the engine logs of the worker's load."""

    seconds = float("nan")

    def emit(self, record: logging.LogRecord) -> None:
        if "model loaded in" in record.msg and isinstance(record.args, tuple):
            self.seconds = float(str(record.args[1]))


def _measure(model: str, precision: str) -> int:
    """Start an engine and print seconds and memory as JSON."""
    log, load = logging.getLogger("fastdeploy_lp"), _LoadSeconds()
    log.setLevel(logging.INFO)
    log.addHandler(load)
    quantization = None if precision == "float32" else precision
    llm = LLM(model, quantization=quantization, max_num_seqs=4, max_model_len=1024)
    found = {"ready": time.monotonic(), "load": load.seconds, "api": status_mb(os.getpid())}
    if llm.worker_pid is None:
        raise RuntimeError("the engine has no worker")
    found["worker"] = status_mb(llm.worker_pid)
    llm.shutdown()
    print(json.dumps(found))
    return 0


def _print_row(kind: str, precision: str, start: str, found: dict[str, Any]) -> None:
    peak, kept = found["worker"]["VmHWM"], found["worker"]["VmRSS"]
    numbers = [f"{found['seconds']:.1f}", f"{found['load']:.1f}", f"{peak:,.0f}", f"{kept:,.0f}", f"{peak / kept:.2f}"]
    print(f"| {' | '.join([kind, precision, start, *numbers, format(found['api']['VmHWM'], ',.0f')])} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
