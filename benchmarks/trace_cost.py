"""Cost of traced rows, and of processors in shadow, in a decode step of the whole batch.

    python benchmarks/trace_cost.py                    # exit status 0 only if one traced row costs 5 % or less
    python benchmarks/trace_cost.py --smoke            # seconds; fails only if it cannot measure

One engine decodes all the time; steps of every kind take turns, so that a busy machine slows all of them equally.
"again" is the plain step a second time: the distance of its ratio from 1 is the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastdeploy_lp.config.model_config import QUANTIZATIONS
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, encode
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.sequence import Sequence as Running

STARTED = "FASTDEPLOY_LP_TRACE_COST"
BIAS, SECOND, MIN_P = "LogitBiasLogitsProcessor", "second", "MinPLogitsProcessor"
MOST = 1.05
PROMPT = 64


@dataclass(frozen=True)
class Kind:
    """A kind of step: so many rows are traced, so many have a processor in shadow."""

    name: str
    traced: int = 0
    shadowed: int = 0


class Bench:
    """An engine whose requests decode all the time; a step can be of any kind."""

    def __init__(self, model: str, quantization: str | None, rows: int, steps: int, top_k: int) -> None:
        room = PROMPT + steps + 64
        args = EngineArgs(
            model=model,
            quantization=quantization,
            max_num_seqs=rows,
            max_model_len=room,
            logits_processors=[BIAS, f"{SECOND}={BIAS}", MIN_P],
        )
        config = args.create_fd_config(show_progress=False)
        specs = [str(spec) for spec in args.logits_processors]
        self.engine = EngineCore(config, LogitsProcessorChain(load_processors(specs), config))
        self._trace = TraceParams(top_k=top_k)
        self._selections = [self._selection(row) for row in range(rows)]
        self._sequences: list[Running] = []
        random = np.random.default_rng(0)
        for row, selection in enumerate(self._selections):
            # Random rows: in steps that are greedy throughout the filter would be left out.
            params = SettledParams(temperature=1.0, top_p=0.95, seed=row, max_tokens=room - PROMPT, ignore_eos=True)
            prompt = random.integers(0, config.model_config.vocab_size, PROMPT).tolist()
            request = AddRequest(str(row), prompt, params, selection)
            self._sequences.append(Running.from_request(request, (), room))
            self.engine.scheduler.add(self._sequences[-1])
        while not all(each.output_token_ids for each in self._sequences):
            self.engine.step()

    @property
    def runner(self) -> ModelRunner:
        """Ours: another platform's may trace nothing."""
        if not isinstance(self.engine.runner, ModelRunner):
            raise TypeError(f"{type(self.engine.runner).__name__} is not the model runner that is measured here")
        return self.engine.runner

    def step(self) -> float:
        """Seconds of one step as the worker does it, its message encoded."""
        began = time.perf_counter()
        encode(self.engine.step())
        return time.perf_counter() - began

    def message_bytes(self) -> int:
        """Size of a step's message to the API process."""
        return len(encode(self.engine.step()))

    def become(self, kind: Kind) -> None:
        """From now on steps are of this kind."""
        runner = self.runner
        for running in self._sequences:
            slot = running.slot
            runner.tracing.leave(slot)
            running.params.logits_processors_trace = self._trace if slot < kind.traced else None
            runner.tracing.enter(running)
            runner.chain.leave(slot)
            shadow = (SECOND,) if slot < kind.shadowed else ()
            runner.chain.enter(slot, Selection(named=self._selections[slot].named, shadow=shadow))

    def _selection(self, row: int) -> Selection:
        bias = {"logit_bias": {100 + row: 1.0, 200 + row: -1.0}}
        return Selection(named={BIAS: bias, SECOND: bias, MIN_P: {"min_p": 0.01}})


def measure(bench: Bench, kinds: Sequence[Kind], turns: int, steps_a_turn: int) -> dict[str, float]:
    """Median milliseconds of a step of each kind; the order of kinds changes from turn to turn."""
    seconds: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    for turn in range(turns):
        for place in range(len(kinds)):
            kind = kinds[(place + turn) % len(kinds)]
            bench.become(kind)
            # The first step after a change builds what the chain keeps from step to step.
            bench.step()
            seconds[kind.name] += [bench.step() for _ in range(steps_a_turn)]
    return {name: 1000 * statistics.median(each) for name, each in seconds.items()}


def call_seconds(call: Callable[[], object], times: int = 2000) -> float:
    """Median of one call."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, report, and judge."""
    parser = argparse.ArgumentParser(description="Measure what traced rows cost a step.")
    parser.add_argument("--model", default="smollm2-135m", help="what --model of the server takes")
    parser.add_argument("--quantization", choices=[*QUANTIZATIONS, "none"], default="w8a16", help="as of the server")
    parser.add_argument("--rows", type=int, default=32, help="requests that decode together")
    parser.add_argument("--top-k", type=int, default=8, help="tokens told a stage")
    parser.add_argument("--turns", type=int, default=20, help="times that each kind of step has its turn")
    parser.add_argument("--smoke", action="store_true", help="tiny run, which fails only if it cannot measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args(argv)
    rows, turns, steps = (4, 2, 2) if args.smoke else (args.rows, args.turns, 8)
    kinds = [Kind("off"), Kind("again"), Kind("one row", traced=1), Kind("all rows", traced=rows)]
    kinds.append(Kind("one row in shadow", shadowed=1))
    quantization = None if args.quantization == "none" else args.quantization
    bench = Bench(args.model, quantization, rows, (turns * (steps + 1) + 4) * len(kinds), args.top_k)
    found = measure(bench, kinds, turns, steps)
    sizes = {}
    for kind in (kinds[0], kinds[2]):
        bench.become(kind)
        sizes[kind.name] = bench.message_bytes()
    bench.become(kinds[0])
    slots = np.arange(rows)
    asked = call_seconds(lambda: (bench.runner.tracing.begin(slots), bench.runner.chain.shadows.has_work))
    print(f"{args.model} {args.quantization}, {rows} rows, a chain of three processors, top_k {args.top_k}")
    for name, milliseconds in found.items():
        print(f"  {name:<18} {milliseconds:9.3f} ms  x {milliseconds / found['off']:.4f}")
    print(f"  a traced token takes {sizes['one row'] - sizes['off']} bytes of a message")
    print(f"  while nobody is traced a step asks for it in {1e6 * asked:.2f} us, {asked * 1e5 / found['off']:.4f} %")
    ratio = found["one row"] / found["off"]
    verdict = "holds" if ratio <= MOST else "MISSED"
    print(f"{verdict}: one traced row among {rows} makes the step x {ratio:.4f}, at most {MOST}")
    if args.json is not None:
        args.json.write_text(json.dumps({"milliseconds": found, "bytes": sizes, "idle_seconds": asked}) + "\n")
    return 0 if ratio <= MOST or args.smoke else 1


if __name__ == "__main__":
    if STARTED not in os.environ:
        # A worker's environment has to be there before Paddle is imported, and plugins would join the chain.
        own = {STARTED: "1", "FASTDEPLOY_LP_PLUGINS": ""}
        os.environ |= {**current_platform().worker_environment(), **own}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())
