"""Runs the same load on this project's server and on the peers that are installed, in turn, and writes the results.

``docs/benchmarks.md`` says what is compared and how; ``--help`` lists the options. A server that does not start, or
fails under load, is a line of the results and does not end the run.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from peers.contender import REPOSITORY, Contender, without_folders

sys.path.insert(0, str(REPOSITORY))
from peers.cpu_time import busy_seconds, tree_seconds
from peers.instructions import output_of
from peers.lineup import Lineup, lineup, use_installed
from peers.machine import this_machine
from peers.outcome import LevelResult, Outcome, PrefillResult, Run
from peers.page import PAGE, write_page
from peers.plot import render_svg
from peers.prompts import long_prompts
from peers.report import Settings, render_json, render_results
from peers.section import BILLION, DEFAULT_MODEL
from peers.server_process import ServerError, ServerProcess

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.entrypoints.bench.http_client import HTTPClientError
from fastdeploy_lp.entrypoints.bench.load import BenchmarkError
from fastdeploy_lp.entrypoints.bench.serving import benchmark, positive_int
from fastdeploy_lp.entrypoints.bench.serving import parse_arguments as load_arguments

# Eight common tokens, nudged by so little that outputs stay sensible: what counts is that every row has its entries.
LOGIT_BIAS = {str(token): 0.25 for token in (253, 260, 282, 288, 314, 338, 355, 418)}
PROBE_TOKENS = 4


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="Compare this project's server with the peers that are installed.")
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="name, directory or GGUF file (default: %(default)s)")
    add("--billion", type=_directory, metavar="DIR", help="a model of 1.07 billion parameters: the page's 2nd section")
    add("--ours", nargs="*", metavar="P", help="our precisions (default: float32 w8a8, and bfloat16 where it is)")
    add("--peers", type=_directory, metavar="DIR", help="what peers/install.py wrote, for options that are not given")
    add("--vllm-python", metavar="PATH", help="Python of an environment with vLLM's CPU build")
    add("--vllm-dtype", nargs="*", metavar="DTYPE", help="float32, bfloat16 (default: float32; of --billion bfloat16)")
    add("--vllm-w8a8", type=Path, metavar="DIR", help="checkpoint by benchmarks/peers/w8a8_checkpoint.py")
    add("--vllm-w8a8-dtype", nargs="+", default=["bfloat16"], metavar="DTYPE", help="beside int8 (default: bfloat16)")
    add("--vllm-env", type=_assignment, action="append", default=[], metavar="NAME=VALUE", help="set for vLLM")
    add("--llama-server", metavar="PATH", help="llama.cpp's llama-server")
    add("--llama-gguf", type=_gguf, nargs="*", metavar="P=FILE", help="GGUF files (default: the model's own)")
    add("--hf", action="store_true", help="Hugging Face generate, from this environment")
    add("--concurrency", type=positive_int, nargs="+", default=[1, 8, 32], metavar="N", help="levels")
    add("--max-tokens", type=positive_int, metavar="N", help="output length (default: 128; of --billion 64)")
    add("--rounds", type=positive_int, default=4, metavar="N", help="requests a worker (default: 4)")
    add("--least-requests", type=positive_int, default=8, metavar="N", help="least requests of a level (default: 8)")
    add("--long-prompts", type=int, default=6, metavar="N", help="prompts of the prefill rate, 0 for none (default: 6)")
    add("--prompt-tokens", type=positive_int, metavar="N", help="their length (default: 1900; of --billion 640)")
    add("--repeats", type=positive_int, default=3, metavar="N", help="starts of each server (default: 3)")
    add("--processors", action="store_true", help="the same load with a logit_bias of 8 entries as well")
    add("--instructions", action=argparse.BooleanOptionalAction, default=True, help="a short start to show those used")
    add("--start-seconds", type=float, default=600.0, metavar="S", help="limit for a server's start (default: 600)")
    add("--output", type=Path, metavar="DIR", help=f"where {PAGE} and its files go (default: docs)")
    add("--smoke", action="store_true", help="only us, in seconds, into a temporary directory unless --output is given")
    if parser.parse_args(argv).smoke:
        parser.set_defaults(ours=["float32"], concurrency=[1, 2], max_tokens=8, rounds=2, repeats=1)
        parser.set_defaults(long_prompts=2, prompt_tokens=64)
    args = parser.parse_args(argv)
    section = DEFAULT_MODEL if args.billion is None else BILLION
    args.max_tokens = args.max_tokens or section.max_tokens
    args.prompt_tokens = args.prompt_tokens or section.prompt_tokens
    if args.long_prompts < 0:
        parser.error(f"--long-prompts: {args.long_prompts} is below 0")
    if args.output is not None and not args.output.is_dir():
        parser.error(f"--output: no directory {args.output}")
    return args


def measure(args: argparse.Namespace, entered: Lineup) -> Iterator[list[Outcome]]:
    """Starts every server in turn, `args.repeats` times; yields the results so far after each of them.

    Interleaved, each round starting with a different server, so that a slowing machine slows all of them.
    """
    outcomes = [Outcome(contender) for contender in entered.contenders]
    # The first one warms up: no prompt is sent twice, so that no prefix cache has it.
    count = args.long_prompts + 1 if args.long_prompts else 0
    prompts = long_prompts(entered.tokenizer, args.prompt_tokens, count)
    for repeat in range(args.repeats):
        first = repeat % max(1, len(outcomes))
        for outcome in outcomes[first:] + outcomes[:first]:
            if outcome.error is not None:
                continue
            print(f"run {repeat + 1} of {args.repeats}: {outcome.contender.name}", file=sys.stderr, flush=True)
            run = Run()
            outcome.runs.append(run)
            try:
                if repeat == 0 and args.instructions:
                    outcome.instructions = instructions(args, outcome.contender)
                with ServerProcess(outcome.contender, args.start_seconds) as server:
                    load(args, server, run, bias=args.processors and outcome.contender.takes_logit_bias)
                    if prompts:
                        run.prefill = prefill(server, prompts)
            except (ServerError, BenchmarkError, HTTPClientError, OSError) as error:
                outcome.error = without_folders(" ".join(str(error).split()))
                print(f"  {outcome.error}", file=sys.stderr, flush=True)
            yield outcomes


def instructions(args: argparse.Namespace, contender: Contender) -> str:
    """The instruction sets of a server, from a separate start that prints them; "" where it prints none."""
    probe = contender.probe
    if probe is None:
        return ""
    if probe.command:
        return probe.read(output_of(probe.command, contender.environment))
    talkative = dataclasses.replace(
        contender,
        command=(*contender.command, *probe.arguments),
        environment={**contender.environment, **probe.environment},
    )
    with ServerProcess(talkative, args.start_seconds) as server:
        options = ["--concurrency", "1", "--requests-per-level", "1", "--warmup", "0"]
        _benchmark(server, [*options, "--max-tokens", str(PROBE_TOKENS)])
        return without_folders(probe.read(server.output()))


def load(args: argparse.Namespace, server: ServerProcess, run: Run, *, bias: bool) -> None:
    """All levels on one server; with `bias`, each level with and without, which of them first changes."""
    for index, concurrency in enumerate(args.concurrency):
        results = [run.plain, run.biased][: 2 if bias else 1]
        for result in results if index % 2 == 0 else reversed(results):
            extra = {"logit_bias": LOGIT_BIAS} if result is run.biased else {}
            result.append(level(args, server, concurrency, extra))


def level(args: argparse.Namespace, server: ServerProcess, concurrency: int, extra: dict[str, Any]) -> LevelResult:
    """One level after a warm-up of as many requests as it holds at a time."""
    options = ["--concurrency", str(concurrency), "--max-tokens", str(args.max_tokens)]
    options += ["--warmup", str(concurrency), "--extra-body", json.dumps(extra)]
    options += ["--requests-per-level", str(max(args.least_requests, args.rounds * concurrency))]
    return LevelResult.of(*_benchmark(server, options))


def prefill(server: ServerProcess, prompts: Sequence[str]) -> PrefillResult:
    """The rate of long prompts, one at a time with one output token each, after a warm-up with the first."""
    options = ["--concurrency", "1", "--warmup", "0", "--max-tokens", "1", "--requests-per-level"]
    with tempfile.TemporaryDirectory() as folder:
        for part in (prompts[:1], prompts[1:]):
            file = Path(folder) / "prompts.txt"
            file.write_text("\n".join(part), encoding="utf-8")
            measured = _benchmark(server, [*options, str(len(part)), "--prompt-file", str(file)])
    return PrefillResult.of(*measured)


def _benchmark(server: ServerProcess, options: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The only level of the load generator's report, and the cores that other processes took meanwhile."""
    started, others = time.perf_counter(), _other_seconds(server.pid)
    report = asyncio.run(benchmark(load_arguments(["--base-url", f"{server.url}/v1", *options])))
    others = _other_seconds(server.pid) - others
    return report["levels"][0], max(0.0, others) / (time.perf_counter() - started)


def write(args: argparse.Namespace, directory: Path, entered: Lineup, outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """Write page, JSON and plot; return the results as Markdown, and whether a bound was missed."""
    settings = Settings(
        entered.model,
        tuple(args.concurrency),
        args.max_tokens,
        args.repeats,
        args.rounds,
        args.processors,
        datetime.now(timezone.utc).isoformat(timespec="minutes"),
        args.prompt_tokens if args.long_prompts else 0,
    )
    machine, section = this_machine(), entered.section
    verdicts = section.verdicts(machine, outcomes, args.concurrency, prefill=args.long_prompts > 0)
    results = render_results(settings, machine, outcomes, verdicts)
    document = json.dumps(render_json(settings, machine, outcomes, verdicts), indent=2, ensure_ascii=False)
    (directory / f"benchmarks{section.suffix}.json").write_text(document + "\n", encoding="utf-8")
    svg = render_svg(outcomes, args.concurrency)
    (directory / f"benchmarks{section.suffix}.svg").write_text(svg, encoding="utf-8")
    write_page(directory, results, section)
    return results, any(verdict.missed for verdict in verdicts)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if one of our configurations has no result or misses a bound."""
    args = parse_arguments(argv)
    # Ending the run by its process id also ends the current server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as dropped:
        directory = args.output or (Path(dropped) if args.smoke else REPOSITORY / "docs")
        results, missed, outcomes = "nothing to compare\n", False, list[Outcome]()
        try:
            if args.peers:
                use_installed(args)
            entered = lineup(args)
            for outcomes in measure(args, entered):
                # After each server, so that stopping the run does not lose hours of work.
                results, missed = write(args, directory, entered, outcomes)
        except CheckpointError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(results)
    return int(missed or any(x.contender.ours and x.problem for x in outcomes))


def _other_seconds(server: int) -> float:
    """Processor time of everything but the server and this process."""
    return busy_seconds() - tree_seconds(server) - time.process_time()


def _directory(text: str) -> Path:
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"no directory {text}")
    return path


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _gguf(text: str) -> tuple[str, Path]:
    precision, path = _assignment(text)
    return precision, Path(path)


if __name__ == "__main__":
    sys.exit(main())
