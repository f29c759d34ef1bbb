"""A processor whose libraries bring LLVM's OpenMP: loading them enters the process in shared memory.

The runtime itself is not installed; the entry is made as it makes it, and removed at an orderly exit.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from fastdeploy_lp import FDConfig, LogitsProcessor

ENTRY = Path("/dev/shm") / f"__KMP_REGISTERED_LIB_{os.getpid()}_{os.getuid()}"
ENTRY.write_text("0x7f0000000000-cafe0000-libomp.so.5")
atexit.register(ENTRY.unlink, missing_ok=True)
print(f"process {os.getpid()} is registered", file=sys.stderr)


class RegisteringLogitsProcessor(LogitsProcessor):
    """Changes nothing."""

    def __init__(self, fd_config: FDConfig) -> None:
        """Nothing to keep."""

    def update_state(self, share_inputs: Any) -> None:
        """Nothing to follow."""

    def apply(self, logits: Any) -> Any:
        """The logits as they are."""
        return logits
