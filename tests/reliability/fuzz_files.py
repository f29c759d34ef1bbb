"""Gives the loader models that are nearly right, and tells what it did not bear.

    python tests/reliability/fuzz_files.py --count 10000 --seed 1 gguf safetensors

Each model is loaded and used as a server does it, by a process with little memory. A failure has the
number by which its model can be had again: `--first N --keep FOLDER` leaves it there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability.damaged_files import KINDS, DamagedModels
from support.server import server_environment

PROGRAM = Path(__file__).parent / "load_process.py"
SHOWN = 4000
REFUSED, SERVED = "refused", "served"
# Teams of threads would only wait for one another on matrices this small.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLAGS_paddle_num_threads": "1",
    # An arena of every thread would count as memory.
    "MALLOC_ARENA_MAX": "1",
}


@dataclass
class LoadReport:
    """What became of the models: "refused", "served" or "fault", by damaged file, and the faults themselves."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{file} {outcome}: {count}" for (file, outcome), count in sorted(self.outcomes.items()))
        return "\n".join([counts, *self.failures[:20], f"{len(self.failures)} failures"])

    def count(self, outcome: str) -> int:
        """Models with this outcome, whichever file was damaged."""
        return sum(count for (_, each), count in self.outcomes.items() if each == outcome)

    def fail(self, number: int, file: str, what: str) -> None:
        """Note a fault of a model."""
        self.outcomes[file, "fault"] += 1
        self.failures.append(f"{file} {number}: {what[-SHOWN:]}")


def load_damaged(kinds: Sequence[str], seed: int, numbers: range) -> dict[str, LoadReport]:
    """Load the models of these numbers of each kind, in one process; raises RuntimeError if they cannot be tried."""
    reports = {kind: LoadReport() for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), ",".join(kinds), str(seed)]
        command += [str(numbers.start), str(numbers.stop), folder]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=server_environment() | ENVIRONMENT
        ) as process:
            for line in process.stdout or ():
                told = json.loads(line)
                _note(told["file"], told["number"], told["outcome"], reports[told["kind"]])
        if process.returncode or any(sum(each.outcomes.values()) < len(numbers) for each in reports.values()):
            printed = (Path(folder) / "printed").read_text(errors="replace")[-SHOWN:]
            raise RuntimeError(f"the process ended with status {process.returncode}: {printed}")
    return reports


def _note(file: str, number: int, outcome: str, report: LoadReport) -> None:
    if outcome in (REFUSED, SERVED):
        report.outcomes[file, outcome] += 1
    else:
        report.fail(number, file, outcome)


def _kept(kind: str, seed: int, number: int, folder: Path) -> None:
    """Write one model into `folder`."""
    with tempfile.TemporaryDirectory() as temporary:
        path, file = DamagedModels(kind, Path(temporary)).damaged(seed, number)
        shutil.copytree(path if path.is_dir() else path.parent, folder, dirs_exist_ok=True)
    print(f"{folder}: {file} is damaged")


def main() -> int:
    """Status 0 when the loader bore everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--count", type=int, default=10_000, help="models of each kind (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first one's number (default: 0)")
    parser.add_argument("--seed", type=int, default=1, help="what they depend on (default: 1)")
    parser.add_argument("--keep", type=Path, help="write the first model here and end")
    args = parser.parse_args()
    if args.keep is not None:
        _kept(args.kinds[0], args.seed, args.first, args.keep)
        return 0
    failed = False
    for kind in args.kinds:
        report = load_damaged([kind], args.seed, range(args.first, args.first + args.count))[kind]
        print(f"{kind}, seed {args.seed}: {report}", flush=True)
        failed = failed or bool(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
