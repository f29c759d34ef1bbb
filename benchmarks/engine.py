"""Measures the engine without HTTP: prefill, decode steps and their parts, the floor of a step, memory.

One process a precision, in a worker's environment. ``benchmarks/README.md`` says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from engine_report import BFLOAT16, FULL, Decode, Job, Measured, Sizes, show

from fastdeploy_lp.config.model_config import QUANTIZATIONS
from fastdeploy_lp.platforms import current_platform

SCHEMA_VERSION = 1
RUNNER = Path(__file__).with_name("engine_run.py")
PROMPTS, BATCHES, CONTEXTS, TURNS = [32, 128, 512, 1024, 2000], [1, 2, 4, 8, 16, 32], [64, 256, 1024], 10
SMOKE = {"prompts": [16], "batches": [1, 4], "contexts": [32], "turns": 2}


def run_job(job: Job, directory: Path) -> Measured | None:
    """Runs the job in a separate process; returns None, with the reason on standard error, if it failed."""
    job_path, result_path = directory / "job.json", directory / "result.json"
    job_path.write_bytes(msgspec.json.encode(job))
    result_path.unlink(missing_ok=True)
    # Plugins' processors would join the chain that is measured.
    environment = {**os.environ, **current_platform().worker_environment(), "FASTDEPLOY_LP_PLUGINS": ""}
    command = [sys.executable, str(RUNNER), str(job_path), str(result_path)]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        print(f"error: {job.quantization or FULL} ended with status {done.returncode}", file=sys.stderr)
        return None
    return msgspec.json.decode(result_path.read_bytes(), type=Measured)


def report(model: str, results: Sequence[Measured]) -> dict[str, object]:
    """Content of the JSON file: all measurements, and derived values by decode step."""
    return {
        "schema_version": SCHEMA_VERSION,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": model,
        "results": [
            asdict(each)
            | {"bandwidth_gb_per_s": each.bandwidth_gb_per_s, "derived": [_derived(row) for row in each.decode]}
            for each in results
        ],
    }


def _derived(row: Decode) -> dict[str, object]:
    floor, all_products = row.floor(), row.all_products()
    return {
        "batch": row.batch,
        "context": row.context,
        "step_ms": row.step.median,
        "shares": row.shares(),
        "step_over": {name: row.step.ratio_to(timing) for name, timing in row.floors.items()},
        "floor": floor,
        "step_over_floor": None if floor is None else row.step.ratio_to(row.floors[floor]),
        "step_over_all_products": None if all_products is None else row.step.ratio_to(all_products),
    }


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the defaults of a smoke run if it is one."""
    parser = argparse.ArgumentParser(description="Measure the engine without HTTP.")
    parser.add_argument("--model", default="smollm2-135m", help="model directory, GGUF file, or a known name")
    names = [FULL, BFLOAT16, *QUANTIZATIONS]
    parser.add_argument("--quantization", nargs="+", choices=names, metavar="P", help=f"precisions: {', '.join(names)}")
    for name, meaning in (("prompts", "prompt lengths"), ("batches", "rows of decode steps"), ("contexts", "contexts")):
        parser.add_argument(f"--{name}", type=_positive, nargs="+", metavar="N", help=meaning)
    parser.add_argument("--turns", type=_positive, metavar="N", help="turns of each measurement")
    parser.add_argument("--processors", action="store_true", help="measure LogitBias in every row, on and off")
    parser.add_argument("--guided", action="store_true", help="measure JSON of a schema in every row, on and off")
    parser.add_argument("--onednn", type=Path, metavar="DIR", help="oneDNN's headers, to compare its products too")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results here as JSON")
    parser.add_argument("--smoke", action="store_true", help="seconds: does it run at all?")
    args = parser.parse_args(argv)
    full = {"prompts": PROMPTS, "batches": BATCHES, "contexts": CONTEXTS, "turns": TURNS, "quantization": names}
    defaults = {**full, **SMOKE, "quantization": ["w8a8"], "processors": True, "guided": True} if args.smoke else full
    for name, value in defaults.items():
        if not getattr(args, name):
            setattr(args, name, value)
    if args.output is not None and not args.output.absolute().parent.is_dir():
        parser.error(f"--output: no directory {args.output.parent}")
    if args.onednn is not None and not (args.onednn / "dnnl.hpp").is_file():
        parser.error(f"--onednn: {args.onednn} holds no dnnl.hpp")
    return args


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Measures each precision, print and write; 1 if one of them could not be measured."""
    args = parse_arguments(argv)
    sizes = Sizes(args.prompts, args.batches, args.contexts, args.turns)
    if args.smoke:
        sizes = replace(sizes, rounds=1, counts=False)
    onednn = None if args.onednn is None else str(args.onednn)
    results: list[Measured] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for precision in args.quantization:
            quantization = None if precision == FULL else precision
            measured = run_job(
                Job(args.model, quantization, sizes, args.processors, args.guided, name, onednn), directory
            )
            if measured is not None:
                show(measured)
                sys.stdout.flush()
                results.append(measured)
    if args.output is not None:
        args.output.write_bytes(msgspec.json.format(msgspec.json.encode(report(args.model, results))) + b"\n")
    return 0 if len(results) == len(args.quantization) else 1


if __name__ == "__main__":
    sys.exit(main())
