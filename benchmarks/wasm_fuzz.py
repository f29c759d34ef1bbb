"""Hostile WebAssembly modules in separate processes: no crash, no escape, no growth of memory.

`python benchmarks/wasm_fuzz.py --modules 100000` prints a line for each process and the sum; its status is 1 after a
crash, a changed row of another request, or growth. tests/logits_processor/wasm/test_fuzz.py runs a few in the suite.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
EACH = 2500
MOST_GROWTH = 48 << 20


def main() -> int:
    """Returns status 0 if every process ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "tests")))}
    total: Counter[str] = Counter()
    bad = 0
    for part in range(-(-args.modules // EACH)):
        command = [sys.executable, "-m", "support.wasm_fuzz", str(args.seed + part), str(EACH)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            bad += 1
            print(f"seed {args.seed + part}: status {ran.returncode}: {ran.stderr[-500:]}", flush=True)
            continue
        report = json.loads(ran.stdout.splitlines()[-1])
        grew = report["grown"] > MOST_GROWTH or report["left"]
        bad += grew
        total.update(report["outcomes"])
        growth, slowest = report["grown"] / 2**20, report["slowest"] * 1e3
        print(f"seed {args.seed + part}: {report['outcomes']}, grew {growth:.1f} MiB, slowest step {slowest:.1f} ms"
              f"{', TOO MUCH' if grew else ''}", flush=True)  # fmt: skip
    print(f"{sum(total.values())} modules: {dict(total)}; {bad} bad processes")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
