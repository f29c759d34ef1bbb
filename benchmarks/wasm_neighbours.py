"""Time between a request's tokens beside hostile uploads, over that beside plain requests.

    PYTHONPATH=tests python benchmarks/wasm_neighbours.py

Four requests without processors generate beside twelve others: plain ones, ones whose module uses its instructions of
a step up, ones whose module does so at its start and which end at their first token, and ones with mutated and random
modules. Kinds take turns. Exits with status 1 if, in the median of the rounds, the mean time over that of the plain
turn is above 1.05, or the uploads' share of the steps' other time above 0.05.
"""

from __future__ import annotations

import os
import sys

from fastdeploy_lp.platforms import current_platform

if __name__ == "__main__":
    # Before Paddle is imported, which reads its settings then.
    WANTED = current_platform().worker_environment() | {"FASTDEPLOY_LP_PLUGINS": ""}
    if any(os.environ.get(name) != value for name, value in WANTED.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **WANTED})

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from support.wasm import NO_REPEATS, TOP_GAP, wat
from support.wasm_fuzz import RandomProgram, mutated

from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection
from fastdeploy_lp.logits_processor.wasm.engine import wasm_engine
from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.module import WasmModule
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

NEIGHBOURS, OTHERS = 4, 12
MAX_RATIO, MAX_SHARE = 1.05, 0.05
PLAIN, STEP, START, FUZZED = "plain", "uses up a step", "uses up a start", "mutated and random"
# Turns of a loop that use up the fuel of a step and of a start: each costs five.
STEP_TURNS, START_TURNS = 2_000_000, 200_000_000


def spinning(turns: int) -> str:
    """Returns the body of a function that runs a loop and returns 0."""
    step = "(local.tee $i (i32.sub (local.get $i) (i32.const 1)))"
    return f"(local $i i32) (local.set $i (i32.const {turns})) (loop $l (br_if $l {step})) (i32.const 0)"


def valid_modules(folder: Path, modules: int) -> list[bytes]:
    """Returns mutated and random modules that an upload would accept."""
    # START has modules that use up their start: a smoke run needs none among its first ones.
    random, engine = Random(8), wasm_engine(1024, None)
    found: list[bytes] = []
    path = folder / "candidate.wasm"
    while len(found) < modules:
        program = RandomProgram(random).module() if random.random() < 0.5 else None
        content = program or mutated(random, random.choice([NO_REPEATS, TOP_GAP]).read_bytes())
        path.write_bytes(content)
        try:
            engine.linked(WasmModule.read(path))
        except (WasmError, ValueError):
            continue
        found.append(content)
    return found


class Crowd:
    """An engine with neighbours that generate all the time, and others that are replaced when they end."""

    def __init__(self, args: argparse.Namespace) -> None:
        slots = NEIGHBOURS + OTHERS
        options = EngineArgs(
            model=args.model,
            quantization=args.quantization,
            max_num_seqs=slots,
            max_model_len=2048,
            upload_time_share=args.share,
        )
        config = options.create_fd_config(show_progress=False)
        self._engine = EngineCore(config, LogitsProcessorChain([], config))
        self._names = map("r{}".format, count())
        self._others: set[str] = set()
        self._neighbours: set[str] = set()

    @property
    def spent(self) -> float:
        """Seconds of processors in steps until now."""
        return sum(stats.seconds for stats in self._engine.runner.chain.stats.values())

    def run(self, seconds: float, selection: Callable[[], Selection], max_tokens: int) -> list[float]:
        """Returns the seconds between steps in which the neighbours get their tokens.

        Runs until one of the others has had a step, too, unless their start is all they do: it has a low priority.
        """
        times: list[float] = []
        end = time.perf_counter() + seconds
        last = None
        others_ran = max_tokens == 1
        while time.perf_counter() < end or len(times) < 2 or not others_ran:
            while len(self._others) < OTHERS:
                self._others.add(self._add(selection(), max_tokens))
            while len(self._neighbours) < NEIGHBOURS:
                self._neighbours.add(self._add(Selection(), 1900))
            steps = self._engine.step().steps
            others_ran = others_ran or any(step.request_id in self._others for step in steps)
            ended = {step.request_id for step in steps if step.finish_reason or step.error}
            if ended & self._neighbours:
                last = None
            elif any(step.request_id in self._neighbours for step in steps):
                now = time.perf_counter()
                times += [] if last is None else [now - last]
                last = now
            self._others -= ended
            self._neighbours -= ended
        self._engine.abort(self._others)
        self._others = set()
        return times

    def _add(self, selection: Selection, max_tokens: int) -> str:
        name = next(self._names)
        params = SettledParams(temperature=1.0, seed=1, max_tokens=max_tokens, ignore_eos=True)
        client = "hostile" if selection.brought else "other"
        self._engine.add(AddRequest(name, [17, 18, 19], params, selection, client=client))
        return name


def selections(folder: Path, kind: str, contents: Sequence[bytes]) -> Callable[[], Selection]:
    """Returns a function that chooses the next module, each under a separate name."""
    names = []
    for number, content in enumerate(contents):
        path = folder / f"{kind.replace(' ', '_')}{number}.wasm"
        path.write_bytes(content)
        names.append((path.stem, f"{path.stem}={path}"))
    turn = count()

    def choose() -> Selection:
        name, spec = names[next(turn) % len(names)]
        return Selection(named={name: {}}, order=(name,), brought={name: spec})

    return choose


@dataclass(frozen=True)
class Turn:
    """One turn of a kind. mean, longest: seconds between tokens. share: the uploads' part of the other time."""

    mean: float
    longest: float
    share: float


def measure(args: argparse.Namespace) -> dict[str, list[Turn]]:
    """Returns each kind's turns, one a round."""
    turns: dict[str, list[Turn]] = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            PLAIN: (Selection, 400),
            STEP: (selections(Path(folder), STEP, [wat(spinning(int(args.fuel * STEP_TURNS)))]), 400),
            START: (selections(Path(folder), START, [wat(init=spinning(int(args.fuel * START_TURNS)))]), 1),
            FUZZED: (selections(Path(folder), FUZZED, valid_modules(Path(folder), args.modules)), 50),
        }
        crowd = Crowd(args)
        for number in range(args.rounds + 1):
            for kind, (selection, max_tokens) in kinds.items():
                crowd.run(args.seconds / 4, selection, max_tokens)
                before, began = crowd.spent, time.perf_counter()
                times = crowd.run(args.seconds, selection, max_tokens)
                spent, took = crowd.spent - before, time.perf_counter() - began
                if number:
                    turn = Turn(statistics.fmean(times), max(times), spent / (took - spent))
                    turns.setdefault(kind, []).append(turn)
    return turns


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="w8a8")
    parser.add_argument("--modules", type=int, default=200, help="mutated and random ones")
    parser.add_argument("--rounds", type=int, default=9, help="after one that does not count")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--share", type=float, default=0.05, help="--upload-time-share of the server")
    parser.add_argument("--fuel", type=float, default=0.95, help="part of a step's and of a start's that is used")
    parser.add_argument("--smoke", action="store_true", help="seconds; judges nothing")
    args = parser.parse_args(given)
    if args.smoke:
        args.modules, args.rounds, args.seconds, args.fuel = 10, 1, 0.2, 0.002
    return args


def main(given: Sequence[str] | None = None) -> int:
    """Measures, reports and judges."""
    args = arguments(given)
    # Every request that fails is logged with a traceback.
    logging.disable()
    turns = measure(args)
    failed = False
    for kind, found in turns.items():
        ratio = statistics.median(each.mean / plain.mean for each, plain in zip(found, turns[PLAIN], strict=True))
        share = statistics.median(each.share for each in found)
        failed |= ratio > MAX_RATIO or share > MAX_SHARE
        mean, longest = statistics.median(each.mean for each in found), max(each.longest for each in found)
        print(f"{kind}: {ratio:.3f} of the time beside plain requests; uploads take {share:.4f} of the other time; "
              f"mean {1e3 * mean:.1f} ms, longest {1e3 * longest:.0f} ms")  # fmt: skip
    return 0 if args.smoke else int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
