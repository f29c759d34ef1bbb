"""Modules for tests: compiled C of the examples, and WAT written around one step."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wasmtime
from paddle import Tensor
from pydantic import BaseModel, Field

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.logits_processor.wasm.engine import WasmEngine, wasm_engine
from fastdeploy_lp.logits_processor.wasm.instance import WasmInstance
from fastdeploy_lp.logits_processor.wasm.module import WasmModule, with_section

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "tests" / "data" / "wasm"
NO_REPEATS, TOP_GAP = BUILT / "no_repeats.wasm", BUILT / "top_gap.wasm"
INCLUDE = ROOT / "fastdeploy_lp" / "logits_processor" / "wasm" / "include"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
VOCAB_SIZE = 64
NO_COMPILER = None if shutil.which("clang") and shutil.which("wasm-ld") else "clang and wasm-ld are not installed"


def compile_c(source: Path, target: Path) -> Path:
    """Compiles a C program as the header says."""
    flags = ["--target=wasm32", "-O3", "-msimd128", "-nostdlib", "-Wl,--no-entry", *WARNINGS, "-I", str(INCLUDE)]
    subprocess.run(["clang", *flags, "-o", str(target), str(source)], check=True)
    return target


def wat(
    step: str = "(i32.const 0)",
    *,
    init: str = "(i32.const 0)",
    more: str = "",
    imports: str = "",
    memory: str = "1",
    logits: bool = False,
    about: dict[str, Any] | None = None,
) -> bytes:
    """A module with the interface; `step` and `init` are the bodies of these functions."""
    name, row = ("lp_step_logits", " i32") if logits else ("lp_step", "")
    content = wasmtime.wat2wasm(f"""(module {imports}
      (memory (export "memory") {memory})
      (global $top (mut i32) (i32.const 8192))
      (func (export "lp_alloc") (param i32) (result i32)
        (global.get $top)
        (global.set $top (i32.and (i32.add (i32.add (global.get $top) (local.get 0)) (i32.const 7)) (i32.const -8))))
      (func (export "lp_init") (param i32 i32 i32 i32 i32 i64) (result i32) {init})
      (func (export "{name}") (param i32 i32{row}) (result i32) {step})
      {more})""")
    return bytes(content) if about is None else with_section(bytes(content), json.dumps(about).encode())


def words(*values: int, place: int = 64) -> str:
    """Instructions that write the first words of `lp_edits`, and return its place."""
    stores = "".join(
        f"(i32.store (i32.const {place + 4 * index}) (i32.const {value}))" for index, value in enumerate(values)
    )
    return f"{stores} (i32.const {place})"


def started(content: bytes, params: Mapping[str, Any] | None = None, **facts: Any) -> WasmInstance:
    """An instance for a request."""
    engine: WasmEngine = facts.pop("engine", None) or wasm_engine(VOCAB_SIZE, None)
    facts = {"prompt": (), "seed": 0, **facts}
    linked = engine.linked(WasmModule("module", content))
    return WasmInstance(engine, linked, json.dumps(dict(params or {})).encode(), **facts)


class NoRepeatsParams(BaseModel):
    """As examples/wasm/no_repeats.c declares them."""

    penalty: float = Field(5, ge=0, le=100)
    window: int = Field(64, ge=1, le=256)


class NoRepeats(LogitsProcessor):
    """The native twin of examples/wasm/no_repeats.c."""

    Params = NoRepeatsParams
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.rows: list[tuple[int, list[int], float]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        self.rows = []
        for row, slot in enumerate(np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()):
            if args[slot]:
                read = NoRepeatsParams.model_validate(dict(args[slot]))
                self.rows.append((row, sorted(set(outputs[slot][-read.window :])), read.penalty))

    def apply(self, logits: Tensor) -> Tensor:
        for row, tokens, penalty in self.rows:
            if tokens:
                changed = logits[row].numpy()
                changed[tokens] -= np.float32(penalty)
                logits[row] = changed
        return logits


class FailsLaterParams(BaseModel):
    """`at`: the number of output tokens at which it fails."""

    at: int | None = None


class FailsLater(LogitsProcessor):
    """A processor that fails as a whole, so that the others of the step run again."""

    Params = FailsLaterParams
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.fails = False

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        self.fails = any(each.at is not None and len(outputs[slot]) == each.at for slot, each in enumerate(args))

    def apply(self, logits: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("fails later")
        return logits
