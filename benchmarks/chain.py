"""Cost of the chain of logits processors in a step, compared with other implementations in the same run.

Every required ratio (a "must") is reported with its bound; the exit status is 0 only if all of them hold.
``benchmarks/README.md`` documents the measurements and their reasons.
"""

from __future__ import annotations

import os
import sys

from fastdeploy_lp.platforms import current_platform

if __name__ == "__main__":
    # Before Paddle is imported, which reads its settings then: a worker's environment, and no plugins, whose processors
    # would join every chain measured here.
    WANTED = current_platform().worker_environment() | {"FASTDEPLOY_LP_PLUGINS": ""}
    if any(os.environ.get(name) != value for name, value in WANTED.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **WANTED})

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import torch
from builtin_batch import Batch as BuiltinBatch
from builtin_costs import CONTESTS, EOS, sides
from builtin_costs import require_same_result as require_same_edit
from paddle import Tensor

from fastdeploy_lp import config
from fastdeploy_lp.logits_processor import BUILTIN, LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sequence import Sequence as Running

SCHEMA_VERSION = 1
LOGIT_BIAS = "LogitBiasLogitsProcessor"
ENTRIES, MANY_ENTRIES = 8, 64
MIN_CALLS, TURN_SECONDS = 3, 0.001
MODEL = "smollm2-135m"
OPERATORS = ("torch index_put_", "paddle index_put_")
# vLLM's own LogitBias took 88 µs where torch's index_put_ took 31 µs.
VLLM_PER_TORCH = 88 / 31

Call = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """Extent of the measurement: (rows, vocabulary) of each shape, turns of every call, and the model's part."""

    shapes: tuple[tuple[int, int], ...] = ((32, 49152), (256, 49152), (256, 151936))
    turns: int = 60
    model_rows: int = 32
    decode_steps: int = 60
    builtin_shapes: tuple[tuple[int, int, int], ...] = ((32, 49152, 20), (256, 151936, 2))
    """With the turns of each."""


SMOKE = Sizes(
    shapes=((4, 512), (16, 512), (16, 2048)),
    turns=3,
    model_rows=4,
    decode_steps=3,
    builtin_shapes=((4, 512, 2), (16, 2048, 1)),
)


@dataclass(frozen=True)
class Must:
    """A number with the bound that it has to keep."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """True if the bound holds."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        verdict = "" if self.holds else " MISSED"
        return f"{self.name} {self.value:.3g} ({'>=' if self.at_least else '<='} {self.bound:g}){verdict}"


class Batch:
    """A real chain and real slots, all of them active, with logits [rows, vocab_size] to work on.

    Every request has `entries` biases; with 0 no request uses a processor.
    """

    def __init__(self, rows: int, vocab_size: int, entries: int, processors: Sequence[str] = (LOGIT_BIAS,)) -> None:
        self.rows, self._vocab_size, self._entries = rows, vocab_size, entries
        self._random = np.random.default_rng(0)
        self.logits = paddle.to_tensor(self._random.standard_normal((rows, vocab_size), np.float32))
        self.share_inputs = ShareInputs(rows, max_model_len=16)
        self.chain = LogitsProcessorChain(load_processors(processors), _fd_config(rows, vocab_size, processors))
        for slot in range(rows):
            self._enter(slot)
        self.share_inputs.set_active(np.arange(rows))

    def step(self) -> Tensor:
        """Runs the chain's work of one step."""
        self.chain.update_state(self.share_inputs)
        return self.chain.apply(self.logits, all_greedy=False, recompute=self.logits.clone)

    def replace_one(self) -> None:
        """A request in the middle of the batch ends, and another one takes its slot."""
        slot = self.rows // 2
        self.share_inputs.clear(slot)
        self.chain.leave(slot)
        self._enter(slot)
        self.share_inputs.set_active(np.arange(self.rows))

    def places(self) -> tuple[Any, Any, Any]:
        """Row, token and bias of every entry."""
        slots = enumerate(self.share_inputs["logits_processors_args"])
        entries = [(row, *entry) for row, args in slots for entry in args["logit_bias"].items()]
        rows, tokens, biases = zip(*entries, strict=True)
        return np.array(rows), np.array(tokens), np.array(biases, np.float32)

    def _enter(self, slot: int) -> None:
        selection = random_biases(self._random, self._vocab_size, self._entries) if self._entries else Selection()
        request = AddRequest(str(slot), [1], SettledParams(), selection)
        running = Running.from_request(request, eos_token_ids=(), max_model_len=16)
        running.slot = slot
        self.share_inputs.assign(running)
        self.chain.enter(slot, selection)


def random_biases(random: np.random.Generator, vocab_size: int, entries: int) -> Selection:
    """A request's choice of `entries` biases."""
    tokens = random.choice(vocab_size, entries, replace=False).tolist()
    return Selection(flat={"logit_bias": dict(zip(tokens, random.standard_normal(entries).tolist(), strict=True))})


def _fd_config(rows: int, vocab_size: int, processors: Sequence[str]) -> config.FDConfig:
    return config.FDConfig(
        config.ModelConfig("none", "", "none", vocab_size, max_model_len=16, eos_token_ids=()),
        config.SchedulerConfig(rows),
        config.CacheConfig(block_size=16, num_blocks=1 + rows),
        config.ParallelConfig(),
        config.StructuredOutputsConfig(tuple(processors)),
    )


def upstream_step(args: Sequence[Any], stop_flags: Iterable[Any], logits: Tensor, *, clone: bool = False) -> Tensor:
    """FastDeploy's algorithm, written anew from its description: lists and tensors are made again in every step.

    `clone` changes a copy of the logits, as an earlier version did.
    """
    active = [slot_args for slot_args, stopped in zip(args, stop_flags, strict=True) if not stopped]
    rows: list[int] = []
    tokens: list[int] = []
    biases: list[float] = []
    for row, slot_args in enumerate(active):
        bias = slot_args.get("logit_bias") or {}
        rows.extend([row] * len(bias))
        tokens.extend(bias.keys())
        biases.extend(bias.values())
    if not tokens:
        return logits
    if clone:
        logits = logits.clone()
    index = paddle.to_tensor(rows, dtype="int32"), paddle.to_tensor(tokens, dtype="int32")
    logits[index] += paddle.to_tensor(biases, dtype=logits.dtype)
    return logits


def contenders(batch: Batch) -> dict[str, Callable[[], Tensor]]:
    """Ours and the others, by name; each adds the batch's biases to its logits."""
    args, logits = batch.share_inputs["logits_processors_args"], batch.logits
    on_host = batch.share_inputs["stop_flags"][:, 0].tolist()
    on_device = paddle.to_tensor(batch.share_inputs["stop_flags"])
    rows, tokens, values = map(torch.from_numpy, batch.places())
    paddle_rows, paddle_tokens, paddle_values = map(paddle.to_tensor, batch.places())
    # All work on the same memory: a tensor allocated by torch could be in smaller pages.
    torch_logits = torch.from_dlpack(logits)
    return {
        "ours": batch.step,
        "upstream": lambda: upstream_step(args, on_host, logits),
        "upstream, flags on device": lambda: upstream_step(args, on_device, logits),
        "upstream, cloning": lambda: upstream_step(args, on_host, logits, clone=True),
        "torch index_put_": lambda: torch_logits.index_put_((rows, tokens), values, accumulate=True),
        "paddle index_put_": lambda: logits.index_put_((paddle_rows, paddle_tokens), paddle_values, accumulate=True),
    }


def require_same_result(batch: Batch, calls: Mapping[str, Callable[[], Tensor]]) -> None:
    """Raise RuntimeError for a call that computes something else than the sum."""
    rows, tokens, values = batch.places()
    for name, call in calls.items():
        expected = batch.logits.numpy().copy()
        expected[rows, tokens] += values
        if not np.array_equal(call().numpy(), expected):
            raise RuntimeError(f"{name} computes something else")


def measure(calls: Mapping[str, Call], turns: int, before: Mapping[str, Call] | None = None) -> dict[str, float]:
    """The median microseconds of each call; they take turns, so that noise affects all equally.

    The first call of a turn does not count: it reloads cache lines that the other calls evicted, mainly the calls
    that clone the logits. `before` is run before each call and not measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            turn: list[float] = []
            while len(turn) <= MIN_CALLS or sum(turn) < TURN_SECONDS:
                turn.append(_seconds(call, (before or {}).get(name)))
            seconds[name] += turn[1:]
    return {name: 1e6 * statistics.median(taken) for name, taken in seconds.items()}


def _seconds(call: Call, before: Call | None) -> float:
    if before is not None:
        before()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def show(title: str, us: Mapping[str, float]) -> None:
    """Prints one table of microseconds, and their ratios to the first."""
    print(f"\n{title:<44}{'us':>10}{'ratio':>10}")
    for name, value in us.items():
        print(f"  {name:<42}{value:>10.1f}{value / next(iter(us.values())):>10.3g}", flush=True)


def measure_shape(rows: int, vocab_size: int, turns: int) -> dict[str, float]:
    """All contenders on one shape; the batch stays as it is between steps."""
    batch = Batch(rows, vocab_size, ENTRIES)
    calls = contenders(batch)
    require_same_result(batch, calls)
    us = measure(calls, turns)
    show(f"{rows} x {vocab_size}, {ENTRIES} entries a row", us)
    return us


def measure_alone(sizes: Sizes) -> dict[str, float]:
    """Ours on growing work, with one request replaced, and five unused processors."""
    (few, small), (many, _), (_, large) = sizes.shapes
    idle = Batch(few, small, 0, [f"{alias}={LOGIT_BIAS}" for alias in "abcde"])
    all_idle = Batch(few, small, 0, list(BUILTIN))
    changing, few_changing = Batch(many, small, ENTRIES), Batch(few, small, ENTRIES)
    calls: dict[str, Call] = {
        "all rows": Batch(many, small, ENTRIES).step,
        "larger vocabulary": Batch(many, large, ENTRIES).step,
        "larger vocabulary, more entries": Batch(many, large, MANY_ENTRIES).step,
        "one request replaced": changing.step,
        "few rows": Batch(few, small, ENTRIES).step,
        "few rows, one request replaced": few_changing.step,
        "five processors that nobody uses": lambda: (idle.step(), idle.chain.needs_guard()),
        "all builtins that nobody uses": lambda: (all_idle.step(), all_idle.chain.needs_guard()),
    }
    replaced = {"one request replaced": changing, "few rows, one request replaced": few_changing}
    us = measure(calls, 3 * sizes.turns, {name: batch.replace_one for name, batch in replaced.items()})
    show("the chain alone", us)
    return us


def measure_builtins(sizes: Sizes) -> dict[str, dict[str, float]]:
    """Each builtin that every row uses, and the other side, by shape and name."""
    found: dict[str, dict[str, float]] = {}
    for rows, vocab_size, turns in sizes.builtin_shapes:
        print(f"\n{f'{rows} x {vocab_size}, used by all rows':<28}{'us':>10}{'theirs':>10}{'ratio':>8}")
        for contest in CONTESTS:
            batch = BuiltinBatch(rows, vocab_size, contest.name, contest.args, eos=EOS)
            require_same_edit(batch, contest)
            calls, before = sides(batch, contest)
            us = measure(calls, turns, before)
            found[f"{contest.noun} {rows} x {vocab_size}"] = us
            ours, theirs = us["ours"], us[contest.against]
            line = f"  {contest.noun:<26}{ours:>10.0f}{theirs:>10.0f}{theirs / ours:>8.3g}  {contest.against}"
            print(line, flush=True)
    return found


def _timed(method: Callable[..., Any], spent: list[float], *args: Any, **kwargs: Any) -> Any:
    began = time.perf_counter()
    result = method(*args, **kwargs)
    spent.append(time.perf_counter() - began)
    return result


def measure_model(sizes: Sizes) -> dict[str, float]:
    """A decode step of the default model with biases in all rows, and the chain's part in it."""
    args = EngineArgs(MODEL, max_num_seqs=sizes.model_rows, max_model_len=256)
    fd_config = args.create_fd_config(show_progress=False)
    chain = LogitsProcessorChain(load_processors([LOGIT_BIAS]), fd_config)
    spent: list[float] = []
    for name in ("update_state", "apply", "needs_guard"):
        setattr(chain, name, partial(_timed, getattr(chain, name), spent))
    engine, random = EngineCore(fd_config, chain), np.random.default_rng(0)
    params = SettledParams(temperature=0, ignore_eos=True)
    for number in range(sizes.model_rows):
        selection = random_biases(random, fd_config.model_config.vocab_size, ENTRIES)
        engine.add(AddRequest(str(number), random.integers(1000, 9000, 16).tolist(), params, selection))
    while engine.scheduler.num_running < sizes.model_rows:
        engine.step()
    chain_s, step_s = [], []
    for _ in range(sizes.decode_steps):
        spent.clear()
        began = time.perf_counter()
        engine.step()
        step_s.append(time.perf_counter() - began)
        chain_s.append(sum(spent))
    us = {"decode step": 1e6 * statistics.median(step_s), "chain": 1e6 * statistics.median(chain_s)}
    show(f"{MODEL}, {sizes.model_rows} rows", us)
    return us


def judge_builtins(builtins: Mapping[str, Mapping[str, float]]) -> list[Must]:
    """None may take longer than the other side."""
    ratios = {
        name: next(value for side, value in us.items() if side != "ours") / us["ours"] for name, us in builtins.items()
    }
    return [Must(f"theirs/ours, {name}", ratio, 1, at_least=True) for name, ratio in ratios.items()]


def judge(
    smallest: Mapping[str, float],
    largest: Mapping[str, float],
    alone: Mapping[str, float],
    model: Mapping[str, float] | None,
) -> list[Must]:
    """The musts, on the largest shape if they depend on a shape and do not name the smallest."""
    ours = largest["ours"]
    change = alone["one request replaced"] - alone["all rows"]
    few_change = alone["few rows, one request replaced"] - alone["few rows"]
    larger = alone["larger vocabulary"]
    musts = [
        Must("upstream/ours", largest["upstream"] / ours, 40, at_least=True),
        Must("ours/fastest operator", ours / min(largest[name] for name in OPERATORS), 1.3),
        Must("smallest shape us", smallest["ours"], 5),
        Must("vLLM/ours", VLLM_PER_TORCH * largest["torch index_put_"] / ours, 2.5, at_least=True),
        Must("larger vocabulary", larger / alone["all rows"], 1.5),
        Must("8x the entries", alone["larger vocabulary, more entries"] / larger, 8 * 1.3),
        Must("replacing one in many/few rows", change / few_change, 2),
        Must("five idle us", alone["five processors that nobody uses"], 20),
        Must("all builtins idle us", alone["all builtins that nobody uses"], 50),
    ]
    return musts + ([Must("% of a decode step", 100 * model["chain"] / model["decode step"], 1)] if model else [])


def ratios(shape: tuple[tuple[int, int], Mapping[str, float]]) -> str:
    """Ratios of the others' times to ours on one shape."""
    (rows, vocab_size), us = shape
    others = ", ".join(f"{name} {value / us['ours']:.3g}" for name, value in us.items() if name != "ours")
    return f"{rows} x {vocab_size}, times ours: {others}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, report, and judge."""
    parser = argparse.ArgumentParser(description="Measure what the chain of logits processors costs a step.")
    parser.add_argument("--skip-model", action="store_true", help="leave the decode step of the default model out")
    parser.add_argument("--builtins", action="store_true", help="measure nothing but each builtin in use")
    parser.add_argument("--smoke", action="store_true", help="tiny run, which fails only if it cannot measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args(argv)
    sizes = SMOKE if args.smoke else Sizes()
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    musts, notes = [], []
    if not args.builtins:
        shapes = {shape: measure_shape(*shape, sizes.turns) for shape in sizes.shapes}
        report["shapes"] = [{"rows": rows, "vocab_size": size, "us": us} for (rows, size), us in shapes.items()]
        report["alone_us"] = alone = measure_alone(sizes)
        report["model_us"] = model = None if args.skip_model else measure_model(sizes)
        smallest, largest = shapes[sizes.shapes[0]], shapes[sizes.shapes[-1]]
        musts, notes = judge(smallest, largest, alone, model), [*map(ratios, shapes.items())]
    report["builtins_us"] = builtins = measure_builtins(sizes)
    musts += judge_builtins(builtins)
    ok = all(must.holds for must in musts)
    report["musts"] = [asdict(must) | {"holds": must.holds} for must in musts]
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{'all musts hold' if ok else 'MISSED'}: {'; '.join([*map(str, musts), *notes])}")
    return 0 if ok or args.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
