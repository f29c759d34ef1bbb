"""`python -m fastdeploy_lp.engine.helpers.module_process SECONDS`: compiles one uploaded module, and ends.

A client made the module; a fault of the compiler affects only this process. `ModuleCheck` starts it.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time

from fastdeploy_lp.engine.helpers.frames import read_frame, write_frame
from fastdeploy_lp.logits_processor.dialects.wasm import WasmDialect
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.module import WasmModule, require_wasm

NAME = "the module"


def main() -> None:
    """Reads a module, and replies with the reason why it cannot be used, empty if it can."""
    pipe, replies = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    content = read_frame(pipe)
    if content is None:
        return
    cpu = math.ceil(time.process_time() + float(sys.argv[1]))
    limits = {resource.RLIMIT_FSIZE: (0, 0), resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_CPU: (cpu, cpu + 1)}
    for kind, most in limits.items():
        resource.setrlimit(kind, most)
    write_frame(replies, _refusal(content).encode())


def _refusal(content: bytes) -> str:
    try:
        WasmDialect().check(WasmModule("module", require_wasm(content)), NAME)
    except WasmError as error:
        return str(error)
    except LogitsProcessorSpecError as error:
        return str(error).removeprefix(f"logits_processors: {NAME!r} ")
    return ""


if __name__ == "__main__":
    main()
