"""`fastdeploy-lp bench` from a checkout, installed or not: closed-loop load on any OpenAI-compatible server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastdeploy_lp.entrypoints.bench.serving import main

if __name__ == "__main__":
    sys.exit(main())
