"""Makes the benchmarks importable: ``benchmarks`` is a folder of programs, which import one another by file name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
