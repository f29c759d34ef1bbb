"""The sources of the CUDA kernels."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent / "kernels"
# Included by the compiled operators for the CPU, too.
SHARED = Path(__file__).parents[1] / "csrc" / "rows" / "row_math.h"
_KERNEL = re.compile(r"^FDLP_KERNEL (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class KernelSources:
    """A translation unit: its text, and the files that it includes, by name."""

    main: str
    headers: dict[str, str]

    @classmethod
    def read(cls) -> KernelSources:
        """Reads the package's kernels."""
        headers = {path.name: path.read_text() for path in [*sorted(DIRECTORY.glob("*.cuh")), SHARED]}
        return cls((DIRECTORY / "rows.cu").read_text(), headers)

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels, sorted."""
        return sorted(name for text in self.headers.values() for name in _KERNEL.findall(text))

    @property
    def digest(self) -> str:
        """A hash of all of it."""
        parts = [self.main, *(part for item in sorted(self.headers.items()) for part in item)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()
