"""Simulation of a fleet with the worker's own scheduler and step times measured on this machine.

    python benchmarks/simulate.py calibrate         # what steps and the server cost here, about two minutes
    python benchmarks/simulate.py reality           # a real server and the simulation of the same requests
    python benchmarks/simulate.py scale             # docs/scaling.json and its plots
    python benchmarks/simulate.py --smoke           # seconds: does all of it run?

`docs/scaling.md` describes the simulation and its results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from simulation import calibration, reality
from simulation.calibration import FULL, calibrate
from simulation.costs import Costs
from simulation.reality import compare, holds, show
from simulation.replica import ReplicaConfig
from simulation.scaling import FULL_SIZES, SMOKE_SIZES, measure_scaling, write_scaling

from fastdeploy_lp.config.model_config import QUANTIZATIONS

HERE = Path(__file__).parent
COSTS = HERE / "data" / "step-costs.json"
REALITY = HERE / "data" / "reality.json"
DOCS = HERE.parent / "docs"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(description="Simulate a fleet of replicas.")
    parser.add_argument("--smoke", action="store_true", help="seconds: does all of it run? Keeps no file")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add = commands.add_parser("calibrate", help="measure what steps and the server cost on this machine")
    add.add_argument("--model", default="smollm2-135m", help="model directory, GGUF file, or a known name")
    add.add_argument("--quantization", choices=[FULL, *QUANTIZATIONS], default="w8a16", help="default: w8a16")
    add.add_argument("--seconds", type=float, default=50.0, metavar="S", help="of steps alone (default: 50)")
    add.add_argument("--costs", type=Path, default=COSTS, metavar="FILE", help="what to write")
    add = commands.add_parser("reality", help="a real server against the simulation of the same requests")
    add.add_argument("--costs", type=Path, default=COSTS, metavar="FILE", help="what calibrate wrote")
    add.add_argument("--seconds", type=float, default=75.0, metavar="S", help="of each of three loads (default: 75)")
    add.add_argument("--output", type=Path, default=REALITY, metavar="FILE", help="what to write")
    add = commands.add_parser("scale", help="loads, policies and fleets of up to 1,000 replicas, and plots")
    add.add_argument("--costs", type=Path, default=COSTS, metavar="FILE", help="what calibrate wrote")
    add.add_argument("--directory", type=Path, default=DOCS, metavar="DIR", help="where scaling*.json and .svg go")
    args = parser.parse_args(argv)
    if args.command is None and not args.smoke:
        parser.error("COMMAND: must be calibrate, reality or scale, unless --smoke is given")
    return args


def run_reality(costs_path: Path, extent: reality.Extent, output: Path) -> int:
    """Prints the table and writes everything; 1 where the prediction is too far off."""
    compared = compare(Costs.read(costs_path), ReplicaConfig(), extent)
    print(show(compared))
    output.write_bytes(msgspec.json.encode(compared) + b"\n")
    return 0 if holds(compared) else 1


def smoke() -> int:
    """All commands with little of everything; how close predictions are does not count."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        costs_path = directory / "costs.json"
        calibrate("smollm2-135m", "w8a16", 1.0, calibration.QUICK).write(costs_path)
        run_reality(costs_path, reality.QUICK, directory / "reality.json")
        write_scaling(measure_scaling(Costs.read(costs_path), SMOKE_SIZES), directory)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; for `reality`, 1 where a prediction is further off than it may be."""
    args = parse_arguments(argv)
    if args.smoke:
        return smoke()
    if args.command == "calibrate":
        costs = calibrate(args.model, args.quantization, args.seconds)
        costs.write(args.costs)
        print(f"{costs.steps} steps, median error of one {costs.fit_error:.1%}, of all {costs.total_error:+.1%}")
        print(costs.server)
        return 0
    if args.command == "reality":
        return run_reality(args.costs, reality.Extent(args.seconds), args.output)
    write_scaling(measure_scaling(Costs.read(args.costs), FULL_SIZES), args.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
