"""Tests of what the simulation is compared by and what its documents are made of."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from simulate import parse_arguments
from simulation.costs import Costs, ServerCosts, StepCosts
from simulation.fleet import Fleet
from simulation.load import body_of
from simulation.outcome import Percentiles
from simulation.reality import Compared, Numbers, holds, measured_of, predict, show
from simulation.replica import ReplicaConfig
from simulation.routing import RoundRobin
from simulation.scaling import BEGIN, END, SMOKE_SIZES, Scaling, Simulations, measure_scaling, replaced, write_scaling
from simulation.trace import Arrival, Lengths, TraceShape

from fastdeploy_lp.entrypoints.bench.load import Sample
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest

COSTS = Costs(StepCosts((1.0, 512.0), (0.01, 0.3), 1e-4, 1e-7), ServerCosts(0.003, 0.004, 0.001, 1e-4), model="a-model")
SIZES = replace(SMOKE_SIZES, seconds=4.0, hour=4.0)
SHORT = TraceShape(5.0, Lengths(20.0, 0.8, 100), Lengths(20.0, 0.8, 100))


def test_scaling_is_written_whole(tmp_path: Path) -> None:
    """Numbers that can be read again, well-formed plots, and tables in their place and nowhere else."""
    page = tmp_path / "scaling.md"
    page.write_text(f"before\n{BEGIN}\nanother table\n{END}\nafter\n")
    scaling = measure_scaling(COSTS, SIZES)
    write_scaling(scaling, tmp_path)
    assert msgspec.json.decode((tmp_path / "scaling.json").read_bytes(), type=Scaling) == scaling
    for name in ("ttft", "throughput", "fleet"):
        ElementTree.parse(tmp_path / f"scaling-{name}.svg")
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "another table" not in written
    runs = [*scaling.loads, *scaling.policies, *scaling.fleets, *scaling.longest]
    assert written.count("| random |") == sum(run.policy == "random" for run in runs)
    with pytest.raises(ValueError, match="no place"):
        replaced("no markers", "text")


def test_only_independent_replicas_are_sampled() -> None:
    """Behind a router that looks at all of them, some do not stand for the rest."""
    with pytest.raises(ValueError, match="not independent"):
        Simulations(COSTS, ReplicaConfig(), SHORT).run(4, 0.5, 1.0, policy="least loaded", sample=2)


def numbers(scale: float) -> Numbers:
    """All of them `scale` times the same."""
    return Numbers(100 * scale, Percentiles(50 * scale, 40 * scale, 90 * scale), Percentiles(9.0, 9.0, 9.0))


@pytest.mark.parametrize(("scale", "close"), [(1.0, True), (1.14, True), (0.86, True), (1.16, False), (0.84, False)])
def test_what_is_close(scale: float, close: bool) -> None:
    """Within 15 % either way, and the table shows by how much."""
    compared = [Compared("low", 2.0, [Arrival(0, 0.0, 1, 1)], numbers(1.0), numbers(scale))]
    assert holds(compared) == close
    assert f"| {scale:.2f} |" in show(compared)


def test_measured_and_predicted_numbers_mean_the_same() -> None:
    """Samples with exactly the simulated times give the simulated numbers."""
    trace = list(SHORT.requests(20.0, 0))
    served = Fleet(1, RoundRobin(1, 0), ReplicaConfig(), COSTS).play(trace).served
    samples = [
        Sample(
            started=each.arrival.time,
            ended=each.last,
            first_text=each.first,
            last_text=each.last,
            output_tokens=each.arrival.output_tokens,
        )
        for each in served
    ]
    measured, predicted = measured_of(samples), predict(trace, COSTS, ReplicaConfig())
    assert measured.tokens_per_s == pytest.approx(predicted.tokens_per_s)
    assert measured.ttft_ms.p99 == pytest.approx(predicted.ttft_ms.p99)
    assert measured.tpot_ms.mean == pytest.approx(predicted.tpot_ms.mean)


def test_bodies_are_requests_of_the_traces_sizes() -> None:
    """The server's own model of a body takes them; prefixes are shared, what follows is not."""
    first, second, salted = (
        CompletionRequest(**body_of(Arrival(number, 0.0, 12, 5, 1, 8), "m", salt)).prompt
        for number, salt in ((0, 0), (1, 0), (0, 1))
    )
    assert len(first) == len(second) == 12
    assert first[:8] == second[:8] != salted[:8]
    assert first[8:] != second[8:]


def test_costs_are_kept(tmp_path: Path) -> None:
    """In a file that says what is wrong with it."""
    COSTS.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == COSTS
    (tmp_path / "wrong.json").write_text("{}")
    with pytest.raises(ValueError, match=r"wrong\.json"):
        Costs.read(tmp_path / "wrong.json")


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is a smoke run."""
    with pytest.raises(SystemExit):
        parse_arguments([])
    assert "calibrate, reality or scale" in capsys.readouterr().err
    assert parse_arguments(["--smoke"]).command is None
