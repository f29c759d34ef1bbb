"""From this machine to costs: steps of an engine alone, then what a server adds to them."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import numpy as np
from peers.contender import our_contender
from peers.server_process import ServerProcess

from fastdeploy_lp.entrypoints.bench.load import BenchmarkError
from fastdeploy_lp.platforms import current_platform
from simulation.costs import Costs, ServerCosts, StepCosts, StepShape, fit
from simulation.fleet import Fleet
from simulation.load import send_in_turn, send_trace
from simulation.replica import ReplicaConfig, Served
from simulation.routing import RoundRobin
from simulation.trace import Arrival

RUNNER = Path(__file__).resolve().parents[1] / "simulate_steps.py"
FULL = "float32"
START_SECONDS = 120.0
PROMPT, OUTPUT = 32, 96
# Requests for one token, one after the other: what a request costs beside its step.
SINGLE_PROMPTS = (32, 128, 256)
# The same beside a few that go on.
BACKGROUND, DISTURBING_SECONDS = 4, 0.3


@dataclass(frozen=True)
class Extent:
    """Requests that measure a server: `waves` of equal ones, `singles` of each length for one token.

    disturbing: requests for one token beside others that go on for `background_output` tokens, in each of `turns`.
    """

    waves: tuple[int, ...]
    singles: int
    disturbing: int
    background_output: int
    turns: int


WHOLE = Extent((1, 4, 8, 16, 32) * 2, singles=12, disturbing=9, background_output=480, turns=4)
QUICK = Extent((1, 2), singles=1, disturbing=1, background_output=60, turns=1)


@dataclass
class StepsJob:
    """Extent and duration of the measurements of `simulate_steps.py`."""

    model: str
    quantization: str | None
    seconds: float


@dataclass
class Steps:
    """Steps that were measured."""

    shapes: list[StepShape]
    seconds: list[float]


def calibrate(model: str, precision: str, seconds: float, extent: Extent = WHOLE) -> Costs:
    """Costs of this machine now; takes `seconds` for the steps and about as long again for the server.

    With a QUICK extent, the server's costs show no more than that they can be measured.
    """
    quantization = None if precision == FULL else precision
    steps = _measure_steps(StepsJob(model, quantization, seconds))
    fitted = fit(steps.shapes, steps.seconds)
    with ServerProcess(our_contender(model, precision), START_SECONDS) as server:
        added = asyncio.run(_measure_server(f"{server.url}/v1", fitted.costs, extent))
    return Costs(
        fitted.costs,
        added,
        model,
        quantization,
        f"{os.cpu_count()} cores",
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        len(steps.shapes),
        fitted.fit_error,
        fitted.total_error,
    )


def _measure_steps(job: StepsJob) -> Steps:
    with tempfile.TemporaryDirectory() as name:
        job_path, result_path = Path(name) / "job.json", Path(name) / "result.json"
        job_path.write_bytes(msgspec.json.encode(job))
        environment = {**os.environ, **current_platform().worker_environment(), "FASTDEPLOY_LP_PLUGINS": ""}
        subprocess.run([sys.executable, str(RUNNER), str(job_path), str(result_path)], env=environment, check=True)
        return msgspec.json.decode(result_path.read_bytes(), type=Steps)


async def _measure_server(url: str, costs: StepCosts, extent: Extent) -> ServerCosts:
    """Waves of equal requests: steps beside the API process; single ones: what is left of the time to their token."""
    await send_trace(url, _wave(max(extent.waves)), 0)
    features, added = [], []
    for number, rows in enumerate(extent.waves):
        sent, samples = await send_trace(url, _wave(rows), 1 + number)
        tpots = [tpot for sample in samples if (tpot := sample.tpot) is not None]
        if not tpots:
            raise BenchmarkError("no time between tokens was measured")
        features.append([1.0, float(rows)])
        added.append(statistics.median(tpots) - _tpot_alone(sent, costs))
    per_step, per_token = np.linalg.lstsq(np.array(features), np.array(added), rcond=None)[0].tolist()
    if min(per_step, per_token) < 0:
        per_step, per_token = 0.0, max(0.0, statistics.fmean(a / f[1] for a, f in zip(added, features, strict=True)))
    alone = Costs(costs, ServerCosts(per_step=per_step, per_token=per_token))
    idle = await _per_request(url, costs, per_step + per_token, extent.singles)
    busy = await _per_request_busy(url, alone, extent)
    return ServerCosts(idle, max(idle, busy), per_step, per_token)


async def _per_request_busy(url: str, alone: Costs, extent: Extent) -> float:
    """Requests for one token beside a few long ones: how much later than without a server their token comes."""
    late = []
    for turn in range(extent.turns):
        sent, samples = await send_trace(url, _disturbed(extent), 200 + turn)
        played = {each.arrival.number: each for each in _played(sent, alone)}
        for number, sample in enumerate(samples[BACKGROUND:], BACKGROUND):
            if (ttft := sample.ttft) is not None:
                late.append(ttft - played[number].ttft)
    if not late:
        raise BenchmarkError("no time to a first token was measured")
    return statistics.median(late)


async def _per_request(url: str, costs: StepCosts, beside: float, singles: int) -> float:
    trace = [
        Arrival(number, 0.0, SINGLE_PROMPTS[number % len(SINGLE_PROMPTS)], 1)
        for number in range(singles * len(SINGLE_PROMPTS))
    ]
    samples = await send_in_turn(url, trace, 100)
    left = []
    for sample in samples:
        tokens = sample.prompt_tokens
        if sample.ttft is not None:
            left.append(sample.ttft - costs.seconds(StepShape(tokens, 1, tokens * (tokens + 1) // 2)) - beside)
    if not left:
        raise BenchmarkError("no time to a first token was measured")
    return max(0.0, statistics.median(left))


def _tpot_alone(trace: list[Arrival], costs: StepCosts) -> float:
    """The median of the same requests if the worker had the machine to itself."""
    return statistics.median(tpot for each in _played(trace, Costs.of_steps(costs)) if (tpot := each.tpot) is not None)


def _played(trace: list[Arrival], costs: Costs) -> list[Served]:
    return Fleet(1, RoundRobin(1, 0), ReplicaConfig(), costs).play(trace).served


def _disturbed(extent: Extent) -> list[Arrival]:
    """Long requests from the beginning on, and beside them, one after the other, requests for one token."""
    return [Arrival(number, 0.0, PROMPT, extent.background_output) for number in range(BACKGROUND)] + [
        Arrival(BACKGROUND + number, (number + 1) * DISTURBING_SECONDS, SINGLE_PROMPTS[number % len(SINGLE_PROMPTS)], 1)
        for number in range(extent.disturbing)
    ]


def _wave(rows: int) -> list[Arrival]:
    return [Arrival(number, 0.0, PROMPT, OUTPUT) for number in range(rows)]
