"""Costs of WebAssembly processors against their bounds, and their tokens against a twin in Python.

`PYTHONPATH=tests python benchmarks/wasm.py` prints microseconds, the best of many runs, beside fixed pieces of work in
the same run, and exits with status 1 if a bound does not hold. `--twins 500` also compares the tokens of 500 random
requests under churn, preemption and speculation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.wasm import NO_REPEATS, TOP_GAP
from support.wasm_twins import ROOMS, both

from fastdeploy_lp.logits_processor.testing import ProcessorHarness
from fastdeploy_lp.logits_processor.testing.loading import standalone_fd_config
from fastdeploy_lp.logits_processor.wasm.engine import wasm_engine
from fastdeploy_lp.logits_processor.wasm.instance import WasmInstance
from fastdeploy_lp.logits_processor.wasm.module import WasmModule

VOCAB_SIZE, ROWS, STEPS = 49_152, 32, 2000
SPARSE_BOUND, READING_BOUND, START_BOUND = 20.0, 100.0, 100.0


def best(call: Callable[[], object], times: int, runs: int = 20) -> float:
    """Returns the least microseconds of a call, over several runs of `times` calls."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - began) / times)
    return min(found) * 1e6


def step_cost(path: Path, rows: int) -> float:
    """Returns microseconds of a row and step of a batch, in a chain's entry, `update_state` included."""
    config = standalone_fd_config(vocab_size=VOCAB_SIZE, max_num_seqs=rows, max_model_len=4096)
    harness = ProcessorHarness(str(path), fd_config=config)
    for row in range(rows):
        harness.enter(f"r{row}", {}, output=[row % 7, 3, 9, 11])
    logits = harness.tensor(np.random.default_rng(1).normal(0, 4, (rows, VOCAB_SIZE)))
    found = []
    for _ in range(STEPS):
        began = time.perf_counter()
        harness.update()
        harness.apply(logits)
        found.append(time.perf_counter() - began)
        for slot in harness.active:
            harness.slots.append_token(slot, slot % 5)
    return min(found) / rows * 1e6


def start_cost(path: Path) -> float:
    """Returns microseconds of an instance's start with a prompt of 100 tokens."""
    engine = wasm_engine(VOCAB_SIZE, None)
    linked = engine.linked(WasmModule.read(path))
    prompt = list(range(100))
    return best(lambda: WasmInstance(engine, linked, b'{"penalty":5}', prompt, 1), 50)


def work() -> float:
    """Returns microseconds of a fixed loop in Python: about 60 on an idle core of 3 GHz."""

    def loop() -> None:
        for _ in range(2000):
            pass

    return best(loop, 50)


def main() -> int:
    """Returns status 0 if every bound holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twins", type=int, default=0, metavar="REQUESTS")
    args = parser.parse_args()
    row = np.zeros(VOCAB_SIZE, np.float32)
    costs = {
        "a sparse row and step, 32 rows": (step_cost(NO_REPEATS, ROWS), SPARSE_BOUND),
        "a row and step that reads 49,152 logits, 32 rows": (step_cost(TOP_GAP, ROWS), READING_BOUND),
        "the same alone": (step_cost(TOP_GAP, 1), None),
        "an instance's start": (start_cost(NO_REPEATS), START_BOUND),
        "a copy of a row in numpy": (best(row.copy, 200), None),
        "2,000 turns of an empty loop in Python": (work(), None),
    }
    failed = False
    for name, (cost, bound) in costs.items():
        failed |= bound is not None and cost > bound
        print(f"{name}: {cost:.1f} µs{'' if bound is None else f' (at most {bound:g})'}")
    for name, room in ROOMS.items() if args.twins else ():
        native, module, engine = both(args.twins, 11, room)
        same = native == module
        failed |= not same
        tokens = sum(len(ran.token_ids) for ran in module.values())
        counts = f"{args.twins} requests, {tokens} tokens, {engine.scheduler.num_preemptions} preemptions"
        print(f"{name}: {counts}: {'the same tokens' if same else 'OTHER TOKENS'}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
