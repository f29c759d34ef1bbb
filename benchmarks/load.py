"""Seconds and memory of a model's load: the first start, which converts a GGUF file, and later ones.

Every start is a separate process with its own worker. ``benchmarks/README.md`` says what is measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
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
    "until ready, s",
    "load, s",
    "worker's processor time, s",
    "worker's peak, MB",
    "kept, MB",
    "peak / kept",
    "API process's peak, MB",
)


def main() -> int:
    """Prints a table of all files and precisions."""
    options = _parser().parse_args()
    if options.measure:
        return _measure(options.measure, options.precisions[0])
    sizes = random_model.Sizes(256, 512, 2, 4, 2) if options.smoke else random_model.Sizes()
    kinds, precisions = (["Q4_K_M"], ["float32"]) if options.smoke else (options.kinds, options.precisions)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for kind in kinds:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            _measure_kind(Path(folder), kind, sizes, precisions)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kinds", nargs="+", choices=random_model.KINDS, default=["Q4_K_M"], help="files of 1.07 billion weights"
    )
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--directory", type=Path, help="where there is room for the files (default: the system's)")
    parser.add_argument("--smoke", action="store_true", help="a small model, to see that the program runs")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser


def _measure_kind(folder: Path, kind: str, sizes: random_model.Sizes, precisions: list[str]) -> None:
    _share_operators(folder / CACHE)
    model = _write(folder, kind, sizes)
    # A directory needs no conversion: its first start is like all others.
    starts = [] if kind == BF16 else [("first", precisions[0])]
    for start, precision in [*starts, *(("later", precision) for precision in precisions)]:
        _print_row(kind, precision, start, _start(model, precision, folder))


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
    (folder / "source.gguf").unlink()
    shutil.rmtree(converted)
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
    """Starts an engine and print seconds and memory as JSON."""
    log, load = logging.getLogger("fastdeploy_lp"), _LoadSeconds()
    log.setLevel(logging.INFO)
    log.addHandler(load)
    quantization = None if precision == "float32" else precision
    llm = LLM(model, quantization=quantization, max_num_seqs=4, max_model_len=1024)
    found = {"ready": time.monotonic(), "load": load.seconds, "api": status_mb(os.getpid())}
    if llm.worker_pid is None:
        raise RuntimeError("the engine has no worker")
    found["worker"] = status_mb(llm.worker_pid)
    found["processor"] = _processor_seconds(llm.worker_pid)
    llm.shutdown()
    print(json.dumps(found))
    return 0


def _processor_seconds(pid: int) -> float:
    """Seconds that a process has computed, in the kernel too."""
    # The fields after the name, which may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _print_row(kind: str, precision: str, start: str, found: dict[str, Any]) -> None:
    peak, kept = found["worker"]["VmHWM"], found["worker"]["VmRSS"]
    numbers = [f"{found[name]:.1f}" for name in ("seconds", "load", "processor")]
    numbers += [f"{peak:,.0f}", f"{kept:,.0f}", f"{peak / kept:.2f}"]
    print(f"| {' | '.join([kind, precision, start, *numbers, format(found['api']['VmHWM'], ',.0f')])} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
