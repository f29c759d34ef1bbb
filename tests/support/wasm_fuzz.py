"""Hostile modules: mutations of valid ones, and random programs with the interface; what a process says after them."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import numpy as np
import paddle
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.dialects.wasm import put_edits
from fastdeploy_lp.logits_processor.testing.loading import standalone_model
from fastdeploy_lp.logits_processor.wasm.engine import WasmEngine
from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault, ModuleRefusal, WasmError
from fastdeploy_lp.logits_processor.wasm.instance import WasmInstance
from fastdeploy_lp.logits_processor.wasm.limits import MEBIBYTE, WasmLimits
from fastdeploy_lp.logits_processor.wasm.module import WasmModule, require_wasm
from fastdeploy_lp.model_executor.ops.row_selection import row_ops
from fastdeploy_lp.model_tokenizer import ModelTokenizer
from support.wasm import NO_REPEATS, TOP_GAP, wat, words

VOCAB_SIZE = 256
LIMITS = WasmLimits(step_fuel=300_000, init_fuel=1_000_000, memory=4 * MEBIBYTE, total_memory=64 * MEBIBYTE)
INTERESTING = (0, 1, 2, 3, 4, 63, 64, 255, 65532, 65535, 65536, 2**31 - 1, -1, -4, -(2**31))
IMPORTS = """
  (import "fastdeploy_lp" "tokenize" (func $tokenize (param i32 i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "detokenize" (func $detokenize (param i32 i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "token_bytes" (func $token_bytes (param i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "vocabulary" (func $vocabulary (param i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "fail" (func $fail (param i32 i32)))"""


class RandomProgram:
    """Bodies of typed instructions, in which loads, stores, growth and calls of the server meet extreme numbers."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def module(self) -> bytes:
        """A module whose init and step are random, or whose step returns random edits."""
        rng = self._rng
        likely = [3, 200, 300, 400, 1024, 500, 4, 600, 2, 0, 0, 0]
        edits = [rng.choice([0, each, each, rng.choice(INTERESTING)]) if each else 0 for each in likely]
        result = words(*edits) if rng.random() < 0.5 else self._integer(3)
        step = f"{self._statements()} {result}"
        init = f"{self._statements()} {self._integer(2)}" if rng.random() < 0.3 else "(i32.const 0)"
        more = f"(table 8 funcref) (elem (i32.const 0) $deep) (func $deep (param i32) (result i32) {self._integer(3)})"
        memory = rng.choice([*["1"] * 8, "1 2", "3", "0"])
        return wat(step, init=init, more=more, imports=IMPORTS, memory=memory, logits=rng.random() < 0.3)

    def _statements(self) -> str:
        return " ".join(self._statement(2) for _ in range(self._rng.randint(0, 4)))

    def _statement(self, depth: int) -> str:
        one, two, three = (self._place(depth) for _ in range(3))
        kinds = [
            f"(i32.store {one} {two})",
            f"(f32.store {one} (f32.reinterpret_i32 {two}))",
            f"(memory.fill {one} {two} {three})",
            f"(memory.copy {one} {two} {three})",
            f"(drop (memory.grow {one}))",
            f"(drop {one})",
            f"(if {one} (then {self._statement(depth - 1) if depth else '(nop)'}))",
            f"(loop $l {self._statement(depth - 1) if depth else '(nop)'} (br_if $l {one}))",
            f"(call $fail {one} {two})" if self._rng.random() < 0.2 else "(nop)",
        ]
        return self._rng.choice(kinds)

    def _place(self, depth: int) -> str:
        """A number that is often within the memory, so that programs get beyond their first load."""
        number = self._integer(depth)
        return f"(i32.and {number} (i32.const 32764))" if self._rng.random() < 0.8 else number

    def _integer(self, depth: int) -> str:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.3:
            number = rng.choice([*INTERESTING, rng.randrange(2**31)])
            return rng.choice(["(local.get 0)", f"(i32.const {number})"])
        one, two, three, four = (self._place(depth - 1) for _ in range(4))
        operator = rng.choice(["add", "sub", "mul", "div_s", "rem_u", "and", "shl", "rotl", "eq", "lt_u"])
        kinds = [
            f"(i32.{operator} {one} {two})",
            f"(i32.load {one})",
            f"(i32.trunc_f32_s (f32.convert_i32_s {one}))",
            f"(i32.reinterpret_f32 (f32.div (f32.convert_i32_s {one}) (f32.convert_i32_s {two})))",
            f"(call $deep {one})",
            f"(call_indirect (param i32) (result i32) {one} {two})",
            f"(call $tokenize {one} {two} {three} {four})",
            f"(call $detokenize {one} {two} {three} {four})",
            f"(call $token_bytes {one} {two} {three})",
            f"(call $vocabulary {one} {two} {three})",
            "(memory.size)",
        ]
        return rng.choice(kinds)


def mutated(rng: Random, content: bytes) -> bytes:
    """A valid module with some bytes changed, removed, repeated or inserted, often inside one section."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        place = rng.randrange(8, len(changed))
        kind = rng.randrange(5)
        if kind == 0:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 2:
            del changed[place : place + rng.randint(1, 8)]
        elif kind == 3:
            changed[place:place] = changed[place : place + rng.randint(1, 8)]
        else:
            other = rng.randrange(8, len(changed))
            changed[place : place + 4] = changed[other : other + 4]
    return bytes(changed)


@dataclass
class FuzzReport:
    """Of one process. grown: bytes of resident memory since the first quarter. slowest: seconds of a step."""

    outcomes: Counter[str] = field(default_factory=Counter)
    grown: int = 0
    slowest: float = 0.0
    left: int = 0


class Fuzzer:
    """Runs hostile modules in this process, as a worker does."""

    def __init__(self, seed: int, tokenizer: ModelTokenizer | None = None) -> None:
        self._rng = Random(seed)
        self._engine = WasmEngine(LIMITS, VOCAB_SIZE, tokenizer)
        self._seeds = [NO_REPEATS.read_bytes(), TOP_GAP.read_bytes()]
        self._logits, self._row_edits = paddle.zeros([3, VOCAB_SIZE]), row_ops()
        self._rows: NDArray[np.float32] = np.from_dlpack(self._logits)
        self.report = FuzzReport()

    def run(self, count: int) -> FuzzReport:
        """Runs this number of modules."""
        settled = 0
        for index in range(count):
            self.report.outcomes[self._one()] += 1
            if index == count // 4:
                gc.collect()
                settled = resident()
        gc.collect()
        self.report.grown = resident() - settled
        self.report.left = self._engine.quota.taken
        return self.report

    def _one(self) -> str:
        rng = self._rng
        content = RandomProgram(rng).module() if rng.random() < 0.5 else mutated(rng, rng.choice(self._seeds))
        try:
            module = WasmModule("hostile", require_wasm(content))
            _ = module.params_model
            linked = self._engine.linked(module)
        except WasmError:
            return "refused"
        try:
            args = rng.choice([b"{}", b'{"gap":3}', b'{"penalty":1e300,"window":-1}'])
            instance = WasmInstance(self._engine, linked, args, [rng.randrange(VOCAB_SIZE)] * rng.randrange(9), 1)
            for _ in range(3):
                self._step(instance)
        except ModuleRefusal:
            return "refuses"
        except ModuleFault:
            return "fault"
        return "ran"

    def _step(self, instance: WasmInstance) -> None:
        self._rows[:] = np.arange(VOCAB_SIZE)
        began = time.perf_counter()
        edits = instance.step([self._rng.randrange(VOCAB_SIZE)], self._rows[1] if instance.needs_logits else None)
        self.report.slowest = max(self.report.slowest, time.perf_counter() - began)
        for fault in put_edits(self._row_edits, self._logits, [] if edits is None else [(1, edits)]).values():
            raise fault
        if (self._rows[::2] != np.arange(VOCAB_SIZE, dtype=np.float32)).any():
            raise SystemExit("a module has changed the row of another request")


def resident() -> int:
    """Bytes of resident memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints the report of SEED and COUNT as JSON."""
    with standalone_model(VOCAB_SIZE) as config:
        report = Fuzzer(int(sys.argv[1]), config.tokenizer).run(int(sys.argv[2]))
    print(json.dumps(vars(report)))


if __name__ == "__main__":
    main()
