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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from peers.contender import (
    REPOSITORY,
    Contender,
    hugging_face_contender,
    llama_contender,
    our_contender,
    vllm_contender,
    without_folders,
)
from peers.cpu_time import busy_seconds, tree_seconds
from peers.machine import this_machine
from peers.outcome import LevelResult, Outcome, Run
from peers.page import PAGE, write_page
from peers.plot import render_svg
from peers.report import Settings, render_json, render_results
from peers.server_process import ServerError, ServerProcess

sys.path.insert(0, str(REPOSITORY))
from fastdeploy_lp.checkpoint import CheckpointError, resolve_model
from fastdeploy_lp.entrypoints.bench.http_client import HTTPClientError
from fastdeploy_lp.entrypoints.bench.load import BenchmarkError
from fastdeploy_lp.entrypoints.bench.serving import benchmark, positive_int
from fastdeploy_lp.entrypoints.bench.serving import parse_arguments as load_arguments

# Eight common tokens, nudged by so little that outputs stay sensible: what counts is that every row has its entries.
LOGIT_BIAS = {str(token): 0.25 for token in (253, 260, 282, 288, 314, 338, 355, 418)}
LEAST_REQUESTS = 8
VERSION_SECONDS = 120.0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description="Compare this project's server with the peers that are installed.")
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="name, directory or GGUF file (default: %(default)s)")
    add("--ours", nargs="*", default=["float32", "w8a8"], metavar="P", help="our precisions (default: float32 w8a8)")
    add("--vllm-python", metavar="PATH", help="Python of an environment with vLLM's CPU build")
    add("--vllm-dtype", nargs="*", default=["float32"], metavar="DTYPE", help="float32, bfloat16 (default: float32)")
    add("--vllm-w8a8", type=Path, metavar="DIR", help="checkpoint by benchmarks/peers/w8a8_checkpoint.py")
    add("--vllm-env", type=_assignment, action="append", default=[], metavar="NAME=VALUE", help="set for vLLM")
    add("--llama-server", metavar="PATH", help="llama.cpp's llama-server")
    add("--llama-gguf", type=_gguf, nargs="*", metavar="P=FILE", help="GGUF files (default: the model's own)")
    add("--hf", action="store_true", help="Hugging Face generate, from this environment")
    add("--concurrency", type=positive_int, nargs="+", default=[1, 8, 32], metavar="N", help="levels")
    add("--max-tokens", type=positive_int, default=128, metavar="N", help="output length (default: 128)")
    add("--rounds", type=positive_int, default=4, metavar="N", help="requests a worker (default: 4)")
    add("--repeats", type=positive_int, default=3, metavar="N", help="starts of each server (default: 3)")
    add("--processors", action="store_true", help="the same load with a logit_bias of 8 entries as well")
    add("--start-seconds", type=float, default=600.0, metavar="S", help="limit for a server's start (default: 600)")
    add("--output", type=Path, metavar="DIR", help=f"where {PAGE} and its files go (default: docs)")
    add("--smoke", action="store_true", help="only us, in seconds, into a temporary directory unless --output is given")
    if parser.parse_args(argv).smoke:
        parser.set_defaults(ours=["float32"], concurrency=[1, 2], max_tokens=8, rounds=2, repeats=1)
    args = parser.parse_args(argv)
    if args.output is not None and not args.output.is_dir():
        parser.error(f"--output: no directory {args.output}")
    return args


def contenders(args: argparse.Namespace) -> list[Contender]:
    """Every server that the options name, ours first.

    Raises CheckpointError where the model is not on this machine.
    """
    files = resolve_model(args.model)
    found = [our_contender(args.model, precision) for precision in args.ours]
    if args.vllm_python:
        version = _version(args.vllm_python, "-c", "import importlib.metadata as m; print(m.version('vllm'))")
        directories = [(files.directory, dtype) for dtype in args.vllm_dtype]
        directories += [(args.vllm_w8a8, "w8a8")] if args.vllm_w8a8 else []
        for directory, precision in directories:
            vllm = vllm_contender(args.vllm_python, directory, precision, dict(args.vllm_env))
            found.append(dataclasses.replace(vllm, version=version))
    if args.llama_server:
        version = _version(args.llama_server, "--version")
        own = [(files.source.stem.rpartition(".")[2], files.source)] if files.source.suffix == ".gguf" else []
        for precision, gguf in own if args.llama_gguf is None else args.llama_gguf:
            llama = llama_contender(args.llama_server, gguf, precision)
            found.append(dataclasses.replace(llama, version=version))
    if args.hf:
        code = "import transformers, torch; print('transformers', transformers.__version__, 'torch', torch.__version__)"
        version = _version(sys.executable, "-c", code)
        found.append(dataclasses.replace(hugging_face_contender(files.directory), version=version))
    return found


def measure(args: argparse.Namespace, entered: Sequence[Contender]) -> Iterator[list[Outcome]]:
    """Starts every server in turn, `args.repeats` times; yields the results so far after each of them.

    Interleaved, each round starting with a different server, so that a slowing machine slows all of them.
    """
    outcomes = [Outcome(contender) for contender in entered]
    for repeat in range(args.repeats):
        first = repeat % max(1, len(outcomes))
        for outcome in outcomes[first:] + outcomes[:first]:
            if outcome.error is not None:
                continue
            print(f"run {repeat + 1} of {args.repeats}: {outcome.contender.name}", file=sys.stderr, flush=True)
            run = Run()
            outcome.runs.append(run)
            try:
                with ServerProcess(outcome.contender, args.start_seconds) as server:
                    load(args, server, run, bias=args.processors and outcome.contender.takes_logit_bias)
            except (ServerError, BenchmarkError, HTTPClientError, OSError) as error:
                outcome.error = without_folders(" ".join(str(error).split()))
                print(f"  {outcome.error}", file=sys.stderr, flush=True)
            yield outcomes


def load(args: argparse.Namespace, server: ServerProcess, run: Run, *, bias: bool) -> None:
    """All levels on one server; with `bias`, each level with and without, which of them first changes."""
    for index, concurrency in enumerate(args.concurrency):
        results = [run.plain, run.biased][: 2 if bias else 1]
        for result in results if index % 2 == 0 else reversed(results):
            extra = {"logit_bias": LOGIT_BIAS} if result is run.biased else {}
            result.append(level(args, server, concurrency, extra))


def level(args: argparse.Namespace, server: ServerProcess, concurrency: int, extra: dict[str, Any]) -> LevelResult:
    """One level after a warm-up of as many requests as it holds at a time."""
    options = [
        "--base-url",
        f"{server.url}/v1",
        "--concurrency",
        str(concurrency),
        "--max-tokens",
        str(args.max_tokens),
    ]
    options += ["--warmup", str(concurrency), "--extra-body", json.dumps(extra)]
    options += ["--requests-per-level", str(max(LEAST_REQUESTS, args.rounds * concurrency))]
    started, others = time.perf_counter(), _other_seconds(server.pid)
    report = asyncio.run(benchmark(load_arguments(options)))
    others = _other_seconds(server.pid) - others
    return LevelResult.of(report["levels"][0], max(0.0, others) / (time.perf_counter() - started))


def write(args: argparse.Namespace, directory: Path, outcomes: Sequence[Outcome]) -> str:
    """Write page, JSON and plot; return the results as Markdown."""
    settings = Settings(
        Path(args.model).name,
        tuple(args.concurrency),
        args.max_tokens,
        args.repeats,
        args.rounds,
        args.processors,
        datetime.now(timezone.utc).isoformat(timespec="minutes"),
    )
    machine = this_machine()
    results = render_results(settings, machine, outcomes)
    document = json.dumps(render_json(settings, machine, outcomes), indent=2, ensure_ascii=False)
    (directory / "benchmarks.json").write_text(document + "\n", encoding="utf-8")
    (directory / "benchmarks.svg").write_text(render_svg(outcomes, args.concurrency), encoding="utf-8")
    write_page(directory, results)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if one of our own configurations has no result."""
    args = parse_arguments(argv)
    # Ending the run by its process id also ends the current server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as dropped:
        directory = args.output or (Path(dropped) if args.smoke else REPOSITORY / "docs")
        results, outcomes = "nothing to compare\n", list[Outcome]()
        try:
            for outcomes in measure(args, contenders(args)):
                # After each server, so that stopping the run does not lose hours of work.
                results = write(args, directory, outcomes)
        except CheckpointError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(results)
    return int(any(x.contender.ours and x.problem for x in outcomes))


def _other_seconds(server: int) -> float:
    """Processor time of everything but the server and this process."""
    return busy_seconds() - tree_seconds(server) - time.process_time()


def _version(*command: str) -> str:
    """Version output of a program, on one line; empty if it does not start."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() if done.returncode == 0 else []
    return without_folders(next((line for line in lines if "version" in line), lines[0] if lines else ""))


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
