"""Speed of speculative decoding, beside the same engine without it.

    python benchmarks/speculation.py                   # exit status 0 only if tokens are equal and the musts hold
    python benchmarks/speculation.py --smoke           # seconds; fails only if tokens differ
    python benchmarks/speculation.py --json runs.json --plot docs/images/speculation.svg
    python benchmarks/speculation.py --llama-server PATH

Both engines answer each batch of prompts in turns. Every answer must have the same tokens in both; of each batch the
fastest turn counts. Answers end where the model ends them, at the latest after `--max-tokens`. `ratio` compares whole
requests, `after` what their tokens take after the first ones: the same requests for one token are subtracted. `idle` is
the share of the time of steps without drafts that looking for them takes, `finding` that share of all steps, on free
chats in an engine inside this process that has answered others before.

With `--llama-server`, llama.cpp answers the same prompts in the same run, with and without its own n-gram drafts, on
the GGUF file of the model. No must is about it, and its answers may differ.

On a machine with other work, `--processor-time` compares seconds of processor time of all processes instead; run it
with OMP_NUM_THREADS=1, since threads that wait for each other take processor time, too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from speculation_engines import Answers, Engine, LlamaEngine, OurEngine
from speculation_plot import render_svg
from speculation_tasks import ANSWER_TOKENS, LONG, Prompt, Task, tasks

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.outputs import NO_DRAFTS
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.startup.settled_config import settled_config
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.model_runner import ModelRunner

IDLE_MUST = 0.01
"""Largest share of a step that an idle drafter may take."""

OURS = "ours"

LLAMA_DRAFTS = "--spec-type ngram-simple --spec-ngram-simple-size-n 6 --spec-ngram-simple-size-m 8"
"""Of several settings the fastest at quotes; with the sizes 12 and 48, its own, few places match."""

TICK = 1e-3
"""Least seconds of a run, which a clock of processor time may not have counted."""


@dataclass(frozen=True)
class Pair:
    """An engine, once without drafts and once with them; the musts are about OURS."""

    name: str
    plain: Engine
    drafting: Engine


@dataclass(frozen=True)
class Run:
    """Answers of one engine to a batch of prompts."""

    answers: Answers
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Tokens per second of a task without and with drafts; `accepted` is the share of right draft tokens.

    ratio, after: of whole requests, and of the time after their first tokens.
    """

    engine: str
    task: str
    requests: int
    plain: float
    drafted: float
    ratio: float
    after: float
    accepted: float
    must: float | None
    same: bool

    @property
    def reached(self) -> bool:
        """True if the ratio that the must is about is as high as it."""
        # A long prompt takes most of its request's time, with or without drafts.
        return (self.after if LONG in self.task else self.ratio) >= (self.must or 0.0)


@dataclass(frozen=True)
class Idle:
    """Shares of the time of steps with this many free chats that looking for drafts takes.

    share: of the steps in which none was found. finding: of all steps.
    """

    requests: int
    share: float
    finding: float


def processor_seconds() -> float:
    """Seconds of processor time of this process and its children."""
    children = [each.read_text().split() for each in Path("/proc/self/task").glob("*/children")]
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in ["self", *(pid for each in children for pid in each)]]
    # After the command's name, which ends with a parenthesis: utime and stime are the fields 14 and 15.
    ticks = sum(int(tick) for each in stats for tick in each.rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(engine: Engine, batch: Sequence[Prompt], args: argparse.Namespace, max_tokens: int) -> Run:
    """Answers a batch of prompts with at most this many tokens each."""
    clock = processor_seconds if args.processor_time else time.perf_counter
    began = clock()
    answers = engine.answer(batch, max_tokens)
    return Run(answers, clock() - began)


def compared(pair: Pair, task: Task, count: int, args: argparse.Namespace) -> Comparison:
    """Runs a task without and with drafts in turns; prompts repeat until they fill a batch."""
    prompts = list(islice(cycle(task.prompts), max(count, len(task.prompts) // count * count)))
    engines = [pair.plain, pair.drafting]
    best: list[list[Run]] = [[], []]
    firsts = [0.0, 0.0]
    same = True
    for first in range(0, len(prompts), count):
        runs: list[list[Run]] = [[], []]
        batch = prompts[first : first + count]
        for _ in range(args.turns):
            for place, engine in enumerate(engines):
                runs[place].append(run(engine, batch, args, args.max_tokens))
        contents = [one.answers.contents for each in runs for one in each]
        same = same and all(each == contents[0] for each in contents)
        for place, each in enumerate(runs):
            best[place].append(min(each, key=lambda one: one.seconds))
            firsts[place] += min(run(engines[place], batch, args, 1).seconds for _ in range(args.turns))
    seconds = [max(sum(one.seconds for one in each), TICK) for each in best]
    after = [max(whole - first, TICK) for whole, first in zip(seconds, firsts, strict=True)]
    # Of each its own: with drafts, answers of llama.cpp may have another length.
    tokens = [sum(one.answers.num_tokens for one in each) for each in best]
    plain, drafted = (number / each for number, each in zip(tokens, seconds, strict=True))
    rates = [number / each for number, each in zip(tokens, after, strict=True)]
    counts = sum((one.answers.drafted for one in best[1]), NO_DRAFTS)
    return Comparison(
        pair.name,
        task.name,
        count,
        round(plain, 1),
        round(drafted, 1),
        round(drafted / plain, 2),
        round(rates[1] / rates[0], 2),
        round(counts.accepted / max(counts.verified, 1), 2),
        task.musts.get(count) if pair.name == OURS else None,
        same,
    )


def idle(options: Mapping[str, Any], prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[Idle]:
    """Measures how long finding drafts takes in an engine inside this process; none may be worth verifying."""
    fd_config = settled_config(EngineArgs(**options), show_progress=False)
    core = EngineCore(fd_config, LogitsProcessorChain([], fd_config))
    if not isinstance(core.runner, ModelRunner):
        raise TypeError(f"the model runner is {type(core.runner).__name__}, whose drafts cannot be timed")
    look = _Look(core.runner.drafts)
    setattr(core.worker, "drafts", look)  # noqa: B010 - a method is replaced for the measurement
    found = []
    # The first answers of a process read code and tables from memory that later ones find in caches.
    for place, count in enumerate([counts[0], *counts]):
        for index, prompt in enumerate(islice(cycle(prompts), count)):
            params = SettledParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
            core.add(AddRequest(f"{place}-{index}", list(prompt), params))
        core.step()
        steps = []
        while core.has_work:
            began = time.perf_counter()
            core.step()
            steps.append((look.seconds, time.perf_counter() - began, look.found))
        without = [step for step in steps if not step[2]]
        found.append(Idle(count, _share(without), _share(steps)))
    return found[1:]


class _Look:
    """Calls a function that finds drafts; keeps the seconds of its last call, and whether it found any."""

    def __init__(self, find: Callable[..., Any]) -> None:
        self._find = find
        self.seconds = 0.0
        self.found = False

    def __call__(self, *args: Any) -> Any:
        """Returns what the function returns."""
        began = time.perf_counter()
        drafts = self._find(*args)
        self.seconds, self.found = time.perf_counter() - began, bool(drafts)
        return drafts


def _share(steps: Sequence[tuple[float, float, bool]]) -> float:
    """Returns the share of looking for drafts in these steps; 0 without any."""
    return round(sum(look for look, _, _ in steps) / max(sum(whole for _, whole, _ in steps), TICK), 4)


def measured(args: argparse.Namespace) -> tuple[list[Comparison], list[Idle]]:
    """Returns the comparisons of all tasks, and the idle shares on free chats."""
    # A long answer to a prompt that was computed before would only show the prefix cache.
    options: dict[str, Any] = {"model": args.model, "quantization": args.quantization, "enable_prefix_caching": False}
    options |= {"max_num_seqs": max(args.requests)}
    drafting = {**options, "speculative_config": args.speculative_config}
    chosen = [task for task in tasks() if not args.tasks or task.name in args.tasks]
    with ExitStack() as open_engines:
        plain, drafts = (open_engines.enter_context(LLM(**each)) for each in (options, drafting))
        pairs = [Pair(OURS, OurEngine(plain), OurEngine(drafts))]
        if args.llama_server:
            pairs.append(llama_pair(args, open_engines))
        results = []
        for task in chosen:
            for count in args.requests:
                for pair in pairs:
                    if all(pair.plain.takes(prompt) for prompt in task.prompts):
                        results.append(compared(pair, task, count, args))
                        print(row(results[-1]), flush=True)
        chats = [prompt.text for task in tasks() if task.name == "chat" for prompt in task.prompts]
        outputs = plain.chat([[{"role": "user", "content": text}] for text in chats], SamplingParams(max_tokens=1))
        prompts = [list(output.prompt_token_ids or ()) for output in outputs]
    return results, idle(drafting, prompts, args.requests) if args.idle else []


def llama_pair(args: argparse.Namespace, open_engines: ExitStack) -> Pair:
    """Starts two servers of llama.cpp with the model's GGUF file, one of which drafts."""
    gguf = resolve_model(args.model).source
    each = [LlamaEngine(args.llama_server, gguf, options) for options in ((), args.llama_drafts.split())]
    plain, drafting = (open_engines.enter_context(engine) for engine in each)
    return Pair("llama.cpp", plain, drafting)


def row(each: Comparison) -> str:
    """Returns a row of the table."""
    return "|" + "|".join(f" {value} " for value in asdict(each).values()) + "|"


def main() -> int:
    """The exit status."""
    args = arguments()
    # Ending the run by its process id also ends llama.cpp's servers.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(
        "| engine | task | requests | tokens/s | with drafts | ratio | after | accepted | must | same tokens |\n|---|"
        + "---|" * 9
    )
    results, shares = measured(args)
    for each in shares:
        print(f"idle at {each.requests}: {each.share:.2%} of a step; finding drafts: {each.finding:.2%}")
    if args.json:
        content = {"tasks": [asdict(each) for each in results], "idle": [asdict(each) for each in shares]}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    judged = [each for each in results if each.engine == OURS]
    if args.plot:
        args.plot.write_text(render_svg([(each.task, each.requests, each.accepted, each.after) for each in judged]))
    same = all(each.same for each in judged)
    fast = all(each.reached for each in judged) and all(each.share <= IDLE_MUST for each in shares)
    return 0 if same and (fast or args.smoke) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="w8a8", type=lambda name: None if name == "none" else name)
    parser.add_argument("--speculative-config", default='{"method": "auto"}')
    parser.add_argument("--llama-server", metavar="PATH", help="llama.cpp's llama-server, to compare with")
    parser.add_argument("--llama-drafts", default=LLAMA_DRAFTS, metavar="OPTIONS", help="its options (%(default)s)")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tasks", nargs="+", metavar="NAME", choices=[task.name for task in tasks()], help="(all)")
    parser.add_argument("--max-tokens", type=int, default=ANSWER_TOKENS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--processor-time", action="store_true", help="compare processor time; Linux only")
    parser.add_argument("--no-idle", action="store_false", dest="idle", help="leave out the idle shares")
    parser.add_argument("--json", type=Path, help="write the results")
    parser.add_argument("--plot", type=Path, help="write acceptance against ratio as SVG")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.requests, args.max_tokens, args.turns = [2], 12, 1
        args.tasks = args.tasks or ["quote", "chat"]
    return args


if __name__ == "__main__":
    sys.exit(main())
