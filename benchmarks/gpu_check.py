"""Checks the server's results and speed on a GPU, and prints a report.

``docs/gpu.md`` documents each part. Exits with status 0 if all parts pass, 1 if one fails, and 77 on a machine without
a GPU that Paddle can use.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_audit import READ, STEP, load_trace, waits_within
from numpy.typing import NDArray

from fastdeploy_lp.platforms import GpuPlatform, find_platform
from fastdeploy_lp.platforms.selection import PLATFORM_VARIABLE

NO_GPU = 77
PART = Path(__file__).with_name("gpu_part.py")
CASES = Path(__file__).resolve().parents[1] / "tests" / "data" / "golden" / "smollm2.json"
# bfloat16 has 8 bits of significance: near ties of the reference flip, and the text diverges from there.
GOLDEN_SHARE = {"gpu": 0.75, "cpu": 1.0}
CHAIN_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Finding:
    """The outcome of one part, in lines for the report."""

    part: str
    well: bool
    lines: list[str]

    def __str__(self) -> str:
        head = f"{self.part}: {'as it should be' if self.well else 'NOT AS IT SHOULD BE'}"
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


@dataclass(frozen=True)
class Check:
    """The parts of a check of one platform; they write their output to `folder`."""

    platform: str
    model: str
    cases: Path
    folder: Path

    def golden(self) -> Finding:
        """Compares greedy tokens with the reference in float32."""
        failed = self._run("golden", self.platform)
        if failed:
            return failed
        answers = json.loads((self.folder / self.platform / "golden.json").read_text())
        prefixes = [_common_prefix(mine, theirs) for mine, theirs in answers]
        lengths = [len(theirs) for _, theirs in answers]
        same = sum(prefix == length for prefix, length in zip(prefixes, lengths, strict=True))
        share = sum(prefixes) / sum(lengths)
        lines = [
            f"{same} of {len(answers)} answers are the reference's token by token",
            f"{share:.1%} of the tokens stand before the first difference (at least "
            f"{GOLDEN_SHARE[self.platform]:.0%} are asked for)",
        ]
        return Finding("golden tokens", share >= GOLDEN_SHARE[self.platform], lines)

    def chain(self) -> Finding:
        """Builtin processors and sampler on the device against the CPU."""
        for platform in sorted({self.platform, "cpu"}):
            failed = self._run("chain", platform)
            if failed:
                return failed
        mine, theirs = (dict(np.load(self.folder / name / "chain.npz")) for name in (self.platform, "cpu"))
        found = differences(mine, theirs, CHAIN_TOLERANCE)
        lines = found or [f"{len(mine)} results are within {CHAIN_TOLERANCE:g} of those of the CPU"]
        return Finding("chain and sampler", not found, lines)

    def audit(self) -> Finding:
        """Number of waits for the device in a step."""
        failed = self._run("audit", self.platform)
        if failed:
            return failed
        trace = load_trace(self.folder / self.platform)
        steps, reads = waits_within(trace, STEP), waits_within(trace, READ)
        if not steps or not reads:
            return Finding("waits of a step", well=False, lines=["the trace shows no step"])
        most, read = max(steps, key=lambda calls: calls.total()), reads[0]
        # A trace in which a read does not wait has not seen CUDA's calls; on a CPU there are none.
        seen = (read.total() > 0) is (self.platform == "gpu")
        lines = [
            f"{len(steps)} steps; waiting calls of one read: {_calls(read)}; of the step with the most: {_calls(most)}"
        ]
        return Finding("waits of a step", seen and most.total() == read.total(), lines)

    def speed(self) -> Finding:
        """Durations of steps, without a required bound."""
        failed = self._run("speed", self.platform)
        if failed:
            return failed
        found = json.loads((self.folder / self.platform / "speed.json").read_text())
        lines = [
            f"{batch:>3} sequences: {milliseconds:8.2f} ms a step, {1000 * int(batch) / milliseconds:8.0f} tokens/s"
            for batch, milliseconds in found.items()
        ]
        return Finding("speed of generation", well=True, lines=lines)

    def _run(self, part: str, platform: str) -> Finding | None:
        """Runs a part in a separate process; returns the report of a failure."""
        folder = self.folder / platform
        folder.mkdir(exist_ok=True)
        chosen = {**os.environ, PLATFORM_VARIABLE: platform, "FASTDEPLOY_LP_PLUGINS": ""}
        environment = {**chosen, **find_platform(chosen).worker_environment()}
        command = [sys.executable, str(PART), part, self.model, str(self.cases), str(folder)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return None
        return Finding(part, well=False, lines=[f"ended with status {ran.returncode}", *ran.stderr.splitlines()[-15:]])


def _calls(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.items()) or "none"


def _common_prefix(mine: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(mine, theirs, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(mine), len(theirs)))


def differences(mine: dict[str, NDArray[Any]], theirs: dict[str, NDArray[Any]], tolerance: float) -> list[str]:
    """Values that differ by more than the tolerance, or are banned on one side only; a line each."""
    if mine.keys() != theirs.keys():
        return [f"only one side has {name}" for name in sorted(mine.keys() ^ theirs.keys())]
    found = []
    for name, array in mine.items():
        other = theirs[name]
        if array.shape != other.shape or (np.isfinite(array) != np.isfinite(other)).any():
            found.append(f"{name}: other tokens are ruled out")
            continue
        finite = np.isfinite(array)
        most = np.abs(array[finite].astype(np.float64) - other[finite]).max(initial=0.0)
        if most > tolerance:
            found.append(f"{name}: up to {most:.2g} apart")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Check the server on this machine's GPU.")
    parser.add_argument("--model", default="smollm2-135m", help="what the golden tokens are of")
    parser.add_argument("--cases", type=Path, default=CASES, help="file of golden prompts and tokens")
    parser.add_argument(
        "--platform", choices=tuple(GOLDEN_SHARE), default="gpu", help="cpu tries the check itself, without a GPU"
    )
    args = parser.parse_args(argv)
    missing = GpuPlatform.what_is_missing()
    if args.platform == "gpu" and missing:
        print(f"gpu-check: there is no GPU that Paddle can use: {missing}", file=sys.stderr)
        return NO_GPU
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args.platform, args.model, args.cases, Path(folder))
        findings = []
        for part in (check.golden, check.chain, check.audit, check.speed):
            findings.append(part())
            print(findings[-1], flush=True)
    return 0 if all(finding.well for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
