"""Random requests with and without every method of speculation, whose answers must be the same in every bit.

    python benchmarks/same_tokens.py                              # until 100,000 tokens were compared
    python benchmarks/same_tokens.py --tokens 1000000 --quantization w8a8 --seed 7
    python benchmarks/same_tokens.py --batch 7-12 --method ngram --only 3 17       # one batch again
    python benchmarks/same_tokens.py --smoke                      # seconds

``benchmarks/README.md`` says what is compared. The exit status is 0 only if nothing differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.mixed_batches import Mix, every_dialect
from support.same_answers import Batch, Difference, Drawing, Ran, compare, methods, random_speculation, run_batch
from support.tiny import GOLDEN
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.engine.errors import EngineDeadError
from fastdeploy_lp.startup.engine_args import EngineArgs

TINY = "tiny"
NOWHERE = -1
REDUCTIONS = 12
# Share of the runs with drafts whose steps wait for no mask of a grammar.
LATE_MASKS = 0.3


@dataclass
class Account:
    """Counts by method, and the differences."""

    tokens: Counter[str] = field(default_factory=Counter)
    verified: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    requests: int = 0
    preemptions: int = 0
    batches: int = 0

    def report(self, args: argparse.Namespace, seconds: float) -> dict[str, Any]:
        """The account as JSON."""
        each = {
            name: {"tokens": count, "verified": self.verified[name], "accepted": self.accepted[name]}
            for name, count in self.tokens.items()
        }
        return {
            "model": args.model,
            "quantization": args.quantization or "float32",
            "seed": args.seed,
            "batches": self.batches,
            "requests": self.requests,
            "preemptions": self.preemptions,
            "tokens": self.tokens.total(),
            "seconds": round(seconds),
            "methods": each,
            "differences": self.found,
        }


class Run:
    """Batches of one seed, each without drafts and then with every method."""

    def __init__(self, args: argparse.Namespace, drawing: Drawing) -> None:
        self._args, self._drawing = args, drawing
        self._methods = {name: each for name, each in methods(drawing.mix.model).items() if args.method in (None, name)}
        self.account = Account()
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    async def batch(self, name: str) -> None:
        """One batch; `name` draws it."""
        began = time.perf_counter()
        batch = await self._drawing.batch(name)
        only = self._args.only
        plain = await run_batch(batch, only=only)
        account, before = self.account, self.account.tokens.total()
        account.batches, account.requests = account.batches + 1, account.requests + len(plain.answers)
        for method, settings in self._methods.items():
            ran, differences, tokens = await self._compared(batch, name, method, settings, plain, only)
            account.tokens[method] += tokens
            account.verified[method] += ran.verified
            account.accepted[method] += ran.accepted
            account.preemptions += ran.preemptions
            if differences:
                await self._reduced(batch, name, method, settings, differences)
            self._write_report()
        seconds = time.perf_counter() - began
        made = account.tokens.total() - before
        print(
            f"batch {name}: {made} tokens in {seconds:.0f} s; in all {account.tokens.total()} tokens, "
            f"{account.accepted.total()} of {account.verified.total()} drafted ones right, "
            f"{len(account.found)} differences",
            flush=True,
        )

    def _write_report(self) -> None:
        """Writes the account after every run, so that the benchmark may be ended at any time."""
        if self._args.json is not None:
            report = self.account.report(self._args, self.seconds)
            self._args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    async def _compared(
        self,
        batch: Batch,
        name: str,
        method: str,
        settings: dict[str, Any],
        plain: Ran,
        only: Sequence[int] | None,
    ) -> tuple[Ran, list[Difference], int]:
        rng = Random(f"{name} {method}")
        speculation, late_masks = random_speculation(rng, settings), rng.random() < LATE_MASKS
        try:
            ran = await run_batch(batch, speculation, plain, only, late_masks=late_masks)
        except EngineDeadError as error:
            return Ran({}), [Difference(NOWHERE, "engine", "runs", str(error))], 0
        found = compare(batch, plain, ran)
        return ran, found.differences, found.tokens

    async def _reduced(
        self, batch: Batch, name: str, method: str, settings: dict[str, Any], differences: list[Difference]
    ) -> None:
        """Prints the differences, and the fewest requests that were found to show one."""
        for each in differences[:5]:
            print(f"batch {name}, {method}: {each}", flush=True)
        places = list(self._args.only or range(len(batch.requests)))
        wrong = differences[0].place
        keep = [wrong] if wrong != NOWHERE else []
        for attempt in range(REDUCTIONS):
            others = [place for place in places if place not in keep]
            if not others:
                break
            size = 0 if attempt == 0 and keep else len(others) // 2
            part = sorted([*keep, *Random(attempt).sample(others, size)])
            plain = await run_batch(batch, only=part)
            _, again, _ = await self._compared(batch, name, method, settings, plain, part)
            if again:
                places = part
        command = f"--batch {name} --method {method} --only {' '.join(map(str, places))}"
        quantization = self._args.quantization or "none"
        same = f"--model {self._args.model} --quantization {quantization} --requests {self._args.requests}"
        print(f"smallest: benchmarks/same_tokens.py {same} {command}", flush=True)
        for place in places if len(places) <= 2 else [wrong]:
            print(f"request {place}: {batch.requests[place]}", flush=True)
        self.account.found += [f"batch {name}, {method}: {each}" for each in differences]


async def run(args: argparse.Namespace, model: str, vocab_size: int) -> Account:
    """Batches until enough tokens were compared, or the time is over."""
    with every_dialect(vocab_size) as processors:
        mix = Mix(model, vocab_size, args.quantization, args.requests, args.max_tokens)
        running = Run(args, Drawing(mix, processors))
        if args.batch is not None:
            await running.batch(args.batch)
            return running.account
        number = 0
        while running.account.tokens.total() < args.tokens and running.seconds < args.seconds:
            await running.batch(f"{args.seed}-{number}")
            number += 1
    return running.account


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if anything differs."""
    args = parse_arguments(argv)
    # Requests that fail on purpose are logged with tracebacks.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        if args.model == TINY:
            model = write_tiny_checkpoint(Path(folder))
            vocab_size = json.loads((GOLDEN / "tiny-llama" / "config.json").read_text())["vocab_size"]
        else:
            model = args.model
            vocab_size = EngineArgs(model=model).create_fd_config(show_progress=False).model_config.vocab_size
        account = asyncio.run(run(args, model, vocab_size))
    for name, count in account.tokens.items():
        print(f"{name}: {count} tokens, {account.accepted[name]} of {account.verified[name]} drafted ones right")
    print(f"{account.tokens.total()} tokens compared, {len(account.found)} differences")
    return int(bool(account.found))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", default=TINY, help="name, directory or GGUF file (default: a tiny one with random weights)")
    add("--quantization", default=None, type=lambda name: None if name == "none" else name, help="default: none")
    add("--tokens", type=int, default=100_000, metavar="N", help="tokens to compare (default: 100000)")
    add("--seconds", type=float, default=float("inf"), metavar="S", help="begin no batch after these")
    add("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    add("--requests", type=int, default=240, metavar="N", help="in a batch (default: 240)")
    add("--max-tokens", type=int, default=96, metavar="N", help="of an output (default: 96)")
    add("--batch", metavar="SEED-N", help="run this batch alone")
    add("--method", help="compare this method alone")
    add("--only", type=int, nargs="+", metavar="PLACE", help="these requests of the batch alone")
    add("--json", type=Path, metavar="FILE", help="write the counts to this file after every run")
    add("--smoke", action="store_true", help="one small batch")
    args = parser.parse_args(argv)
    if args.smoke:
        args.tokens, args.requests, args.max_tokens = 1, 20, 12
    return args


if __name__ == "__main__":
    sys.exit(main())
