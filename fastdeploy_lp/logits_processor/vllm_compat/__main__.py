"""Runs a program written for vLLM: `python -m fastdeploy_lp.logits_processor.vllm_compat FILE [ARGUMENT …]`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from fastdeploy_lp.logits_processor.vllm_compat import install


def main() -> None:
    """Runs the file of the first argument as `python FILE …` would."""
    if len(sys.argv) < 2:
        raise SystemExit(f"usage: python -m {__package__} FILE [ARGUMENT …]")
    install()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
