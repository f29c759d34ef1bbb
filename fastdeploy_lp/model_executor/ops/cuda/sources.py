"""The sources of the CUDA kernels."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent / "kernels"
ATTENTION_DIRECTORY = DIRECTORY / "attention"
# Included by the compiled operators for the CPU, too.
SHARED = Path(__file__).parents[1] / "csrc" / "rows" / "row_math.h"
_KERNEL = re.compile(r"^FDLP_(?:KERNEL|ATTENTION) (\w+)\(", re.MULTILINE)

# C++ names of element types, by Paddle's names.
ELEMENTS = {"bfloat16": "Bfloat16", "float16": "Float16", "float32": "Float32"}
# A warp loads 32 neighboring elements of a head at once.
HEAD_DIMS = (32, 64, 96, 128)
_ATTENTION = (
    "FDLP_ATTENTION fdlp_{kernel}_{element}_{head_dim}(const fdlp::Attention given) "
    "{{ fdlp::{kernel}<fdlp::{name}, {head_dim}>(given); }}\n"
)


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

    @classmethod
    def attention(cls, *variants: tuple[str, int]) -> KernelSources:
        """Reads the kernels of attention, for element types and sizes of heads: keys of ELEMENTS and HEAD_DIMS.

        A model needs one variant, and compiling all of them takes long.
        """
        paths = [*sorted(ATTENTION_DIRECTORY.glob("*.cuh")), DIRECTORY / "block.cuh", SHARED]
        kernels = [
            _ATTENTION.format(kernel=kernel, element=element, name=ELEMENTS[element], head_dim=head_dim)
            for element, head_dim in variants
            for kernel in ("store", "split", "merge", "whole")
        ]
        main = "\n".join(['#include "attention.cuh"', "", *kernels])
        return cls(main, {path.name: path.read_text() for path in paths})

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels, sorted."""
        return sorted(name for text in (self.main, *self.headers.values()) for name in _KERNEL.findall(text))

    @property
    def digest(self) -> str:
        """A hash of all of it."""
        parts = [self.main, *(part for item in sorted(self.headers.items()) for part in item)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()
