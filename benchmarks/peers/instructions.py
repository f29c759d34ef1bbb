"""The instruction sets that a server computed with, read from what its own programs print."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# llama.cpp's names of instruction sets that matter to products, and the buffers of rearranged weights.
FEATURES = ("AVX2", "AVX512", "AVX_VNNI", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8")
REARRANGED = ("CPU_REPACK", "AMX")
# The processor's flags that our operators, compiled for this machine, can use.
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
COMMAND_SECONDS = 120.0


@dataclass(frozen=True)
class Probe:
    """A separate short start that shows a server's instruction sets.

    environment, arguments: additions to the measured start's, to make it print more. read: finds the instruction
    sets in the output, "" for none. command: is run instead of a start of the server.
    """

    read: Callable[[str], str]
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def of_onednn(log: str) -> str:
    """oneDNN's instruction set, and the kernels of its products by type of activation (`ONEDNN_VERBOSE`)."""
    version = re.search(r"onednn_verbose,.*info,oneDNN v([\w.]+)", log)
    isa = re.search(r"onednn_verbose,.*info,cpu,isa:(.*)", log)
    products = re.findall(r"onednn_verbose,.*exec,cpu,(?:matmul|inner_product),([^,]+),[^,]*,src[:_](\w+)", log)
    kernels = ", ".join(sorted({f"{activation} {kernel}" for kernel, activation in products}))
    if not version or not kernels:
        return ""
    return f"oneDNN {version[1]} ({isa[1].strip() if isa else 'instruction set not named'}): {kernels}"


def of_llama(log: str) -> str:
    """The instruction sets that llama.cpp was compiled for, and where they made it rearrange the weights."""
    line = next((line for line in log.splitlines() if "system_info:" in line), "")
    enabled = {name for name, value in re.findall(r"(\w+) = (\d+)", line) if value != "0"}
    features = ", ".join(name for name in FEATURES if name in enabled)
    sizes = re.findall(rf"\b({'|'.join(REARRANGED)}) model buffer size = *([\d.]+) MiB", log)
    buffers = [f"{float(size):.0f} MiB of weights in {name}" for name, size in sizes if float(size)]
    return "; ".join(part for part in (features, *buffers) if part)


def of_ours(report: str) -> str:
    """The instruction sets of the processor and of the operators' products, from a report of `collect-env`."""
    features = re.search(r"^\s*features: (.*)$", report, re.MULTILINE)
    words = features[1].split() if features else []
    processor = ", ".join(flag for flag in FLAGS if flag in words)
    products = re.findall(r"^\s*(products of .*\S)\s*$", report, re.MULTILINE)
    return "; ".join(part for part in (processor, *products) if part)


def output_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Returns the output of a program, or its errors if there is none; "" if it fails or does not end."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **(environment or {})},
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip() or done.stderr.strip()) if done.returncode == 0 else ""
