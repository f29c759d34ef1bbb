"""Makes the benchmarks importable, whose requests and accounts of memory are used here, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
