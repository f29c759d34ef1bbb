"""Processors that draw: how well watermarks are found, what they do to perplexity, and what a step costs.

    python benchmarks/draws.py           # exit status 0 only if every bound holds
    python benchmarks/draws.py --smoke   # a minute; fails only if it cannot measure

``benchmarks/README.md`` explains the numbers.
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
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp import LLM, LogitsProcessor, SamplingParams
from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.logits_processor.builtin.keyed_scores import gumbel_score, synthid_score
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sequence import Sequence as Running

KEY = 20_241_023
GUMBEL, SYNTHID, MIROSTAT = (f"{name}LogitsProcessor" for name in ("GumbelWatermark", "SynthIDWatermark", "Mirostat"))
PLAIN = "plain"
ARGUMENTS: dict[str, dict[str, Any]] = {
    GUMBEL: {"gumbel_key": KEY},
    SYNTHID: {"synthid_key": KEY},
    MIROSTAT: {"mirostat_tau": 5.0},
}
SCORES = {GUMBEL: gumbel_score, SYNTHID: synthid_score}
MIN_AUC, MAX_QUALITY, MAX_COST = 0.99, 0.01, 0.01
TOKENS = 200
TOPICS = (
    ["a lighthouse", "bread", "the history of glass", "a lost dog", "volcanoes", "a train journey", "honey bees"],
    ["for a child", "as a letter", "with an unexpected end", "in the style of a newspaper", "as advice to a friend"],
    ["Write about {topic} {way}.", "Tell me something surprising about {topic}, {way}.", "Describe {topic} {way}."],
)


class Entropy(LogitsProcessor):
    """Emits the entropy of the distribution that a token is drawn from, in nats."""

    stage = "filtered"

    def __init__(self, fd_config: Any) -> None:  # noqa: ARG002 - the contract
        self._slots: list[int] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Finds the slots of the rows."""
        self._slots = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()

    def apply(self, logits: Any) -> Any:
        """Reads the rows."""
        for slot, row in zip(self._slots, np.from_dlpack(logits), strict=True):
            below = row.astype(np.float64) - row.max()
            weights = np.exp(below)
            total = weights.sum()
            # -inf times 0 is 0 here.
            mean = float((weights * np.maximum(below, -700.0)).sum() / total)
            self.actions.emit(slot, math.log(total) - mean)
        return logits


@dataclass(frozen=True)
class Texts:
    """Texts of one way to draw: tokens as a detector reads them, and by token its surprise and the entropy, in nats."""

    tokens: list[list[int]]
    surprises: list[list[float]]
    entropies: list[list[float]]

    @property
    def perplexity(self) -> float:
        """Of all tokens together."""
        return math.exp(statistics.fmean(each for text in self.surprises for each in text))

    @property
    def excess(self) -> tuple[float, float]:
        """Mean of surprise less entropy, 0 in expectation for a plain draw, with its standard error over texts."""
        pairs = zip(self.surprises, self.entropies, strict=True)
        means = [float(np.mean(np.subtract(text, entropy))) for text, entropy in pairs]
        return statistics.fmean(means), statistics.stdev(means) / math.sqrt(len(means))


@dataclass(frozen=True)
class Quality:
    """One way to draw. ratio: of perplexities, to the plain draw's. excess, error: see `Texts.excess`."""

    way: str
    auc: float | None
    perplexity: float
    ratio: float
    excess: float
    error: float


def prompts(count: int) -> list[str]:
    """Returns different questions; the last ones repeat the first."""
    found = [form.format(topic=topic, way=way) for form in TOPICS[2] for way in TOPICS[1] for topic in TOPICS[0]]
    return [found[place % len(found)] for place in range(count)]


def area(marked: Sequence[float], others: Sequence[float]) -> float:
    """Returns the area under the ROC curve: the probability that a marked text scores higher than another."""
    above = np.subtract.outer(np.array(marked), np.array(others))
    return float((above > 0).mean() + (above == 0).mean() / 2)


def written(llm: LLM, encode: Callable[[str], list[int]], way: str, count: int, tokens: int) -> Texts:
    """Returns texts of the default model at temperature 1."""
    named: dict[str, dict[str, Any]] = {"Entropy": {}} | ({} if way == PLAIN else {way: ARGUMENTS[way]})
    params = [
        SamplingParams(
            temperature=1.0, max_tokens=tokens, seed=seed, ignore_eos=True, logprobs=0, logits_processors=named
        )
        for seed in range(count)
    ]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts(count)]
    outputs = [answer.outputs for answer in llm.chat(chats, params, use_tqdm=False)]
    surprises = [
        [-place[token].logprob for token, place in zip(each.token_ids, each.logprobs or (), strict=True)]
        for each in outputs
    ]
    entropies = [(each.logits_processors_outputs or {})["Entropy"] for each in outputs]
    return Texts([encode(each.text) for each in outputs], surprises, entropies)


def quality(args: argparse.Namespace) -> list[Quality]:
    """Returns detection and perplexity of each way to draw."""
    encode = Tokenizer(resolve_model(args.model).directory).encode_phrase
    processors: list[str | type] = [Entropy, *ARGUMENTS]
    sizes: dict[str, Any] = {"max_num_seqs": 32, "max_model_len": 512}
    with LLM(model=args.model, quantization=args.quantization, logits_processors=processors, **sizes) as llm:
        texts = {way: written(llm, encode, way, args.texts, args.tokens) for way in (PLAIN, *ARGUMENTS)}
    plain = texts[PLAIN]
    found = []
    for way, each in texts.items():
        auc = None
        if way in SCORES:
            marked, others = ([SCORES[way](text, KEY).z for text in those.tokens] for those in (each, plain))
            auc = area(marked, others)
        found.append(Quality(way, auc, each.perplexity, each.perplexity / plain.perplexity, *each.excess))
    return found


@dataclass(frozen=True)
class Cost:
    """A decode step in which every row uses a processor: milliseconds of the clock and of the cores.

    Medians over turns, the ratios' too.
    """

    way: str
    filters: str
    rows: int
    step_ms: float
    ratio: float
    core_ms: float
    core_ratio: float


class Bench:
    """An engine whose requests decode all the time; a step can be of any way to draw."""

    def __init__(self, args: argparse.Namespace, rows: int, filters: Mapping[str, Any], steps: int) -> None:
        room = steps + 64
        options = EngineArgs(model=args.model, quantization=args.quantization, max_num_seqs=rows, max_model_len=room)
        config = options.create_fd_config(show_progress=False)
        self._engine = EngineCore(config, LogitsProcessorChain(load_processors([*ARGUMENTS]), config))
        random = np.random.default_rng(0)
        self._running: list[Running] = []
        for row in range(rows):
            params = SettledParams(**{"temperature": 1.0, **filters}, seed=row, max_tokens=steps, ignore_eos=True)
            prompt: list[int] = random.integers(0, config.model_config.vocab_size, 16).tolist()
            self._running.append(Running.from_request(AddRequest(str(row), prompt, params), (), room))
            self._engine.scheduler.add(self._running[-1])
        while not all(each.output_token_ids for each in self._running):
            self._engine.step()

    def become(self, way: str) -> None:
        """Changes the way to draw."""
        chain = self._engine.runner.chain
        for each in self._running:
            chain.leave(each.slot)
            chain.enter(each.slot, Selection() if way == PLAIN else Selection(named={way: ARGUMENTS[way]}))

    def step(self) -> tuple[float, float]:
        """Runs a step; returns its seconds by the clock, and of all cores."""
        began, worked = time.perf_counter(), time.process_time()
        self._engine.step()
        return time.perf_counter() - began, time.process_time() - worked


def costs(args: argparse.Namespace, rows: int, filters: Mapping[str, Any]) -> list[Cost]:
    """Returns the cost of each way; the ways take turns, and are compared within a turn: a machine may be busy."""
    ways = (PLAIN, *ARGUMENTS, "again")
    bench = Bench(args, rows, filters, args.turns * len(ways) * (args.steps + 1) + 8)
    # Of each turn, the medians of its steps: by the clock, and of all cores.
    seconds: dict[str, list[NDArray[np.float64]]] = {way: [] for way in ways}
    for turn in range(args.turns):
        for place in range(len(ways)):
            way = ways[(place + turn) % len(ways)]
            bench.become(PLAIN if way == "again" else way)
            bench.step()
            seconds[way].append(np.median([bench.step() for _ in range(args.steps)], axis=0))
    label = ", ".join(f"{name} {value:g}" for name, value in filters.items()) or "none"
    found = []
    for way, each in seconds.items():
        step, core = 1000 * np.median(each, axis=0)
        ratio, core_ratio = np.median(np.divide(each, seconds[PLAIN]), axis=0)
        found.append(Cost(way, label, rows, step, ratio, core, core_ratio))
    return found


FILTERS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.7, "top_p": 0.95})


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description="Measure processors that draw.")
    parser.add_argument("--model", default="smollm2-135m", help="what --model of the server takes")
    parser.add_argument("--quantization", default="w8a8", help="as of the server")
    parser.add_argument("--texts", type=int, default=160, help="texts of each way (160)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of a text ({TOKENS})")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="rows of a step (1 32)")
    parser.add_argument("--turns", type=int, default=40, help="turns of each way (40)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn")
    parser.add_argument("--only", choices=["quality", "cost"], help="one of the two parts")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--smoke", action="store_true", help="a minute; judges nothing")
    args = parser.parse_args(argv)
    if args.smoke:
        args.texts, args.tokens, args.turns, args.steps, args.rows = 4, 40, 2, 2, [2]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, reports, and judges."""
    args = parse_arguments(argv)
    found = [] if args.only == "cost" else quality(args)
    prices = (
        []
        if args.only == "quality"
        else [each for rows in args.rows for filters in FILTERS for each in costs(args, rows, filters)]
    )
    if args.json:
        print(json.dumps({"quality": [asdict(each) for each in found], "cost": [asdict(each) for each in prices]}))
    for each in () if args.json else found:
        auc = "" if each.auc is None else f"  AUC {each.auc:.4f}"
        print(
            f"{each.way:32} perplexity {each.perplexity:7.2f}  ratio {each.ratio:.3f}  "
            f"excess {each.excess:+.4f} ± {each.error:.4f} nats{auc}"
        )
    for price in () if args.json else prices:
        print(
            f"{price.rows:3} rows  filters {price.filters:28} {price.way:32} {price.step_ms:8.2f} ms  "
            f"{price.ratio:.3f}  cores {price.core_ms:8.2f} ms  {price.core_ratio:.3f}"
        )
    return 0 if args.smoke else int(not (all(map(_is_good, found)) and all(map(_is_cheap, prices))))


def _is_good(each: Quality) -> bool:
    """Mirostat's aim is another perplexity."""
    if each.way == MIROSTAT:
        return True
    return (each.auc is None or each.auc >= MIN_AUC) and abs(each.excess) <= MAX_QUALITY + 2 * each.error


def _is_cheap(price: Cost) -> bool:
    return price.way in (PLAIN, "again") or price.core_ratio <= 1 + MAX_COST


if __name__ == "__main__":
    raise SystemExit(main())
