"""Tests of the simulation: the worker's own schedule, nothing lost, the same for the same seed."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulation.costs import Costs, ServerCosts, StepCosts, StepShape, fit
from simulation.fleet import Fleet, Played
from simulation.noting import NotingScheduler
from simulation.outcome import outcome_of
from simulation.plot import Curve, Plot, render
from simulation.reality import capacity
from simulation.replica import Replica, ReplicaConfig, Stretch
from simulation.routing import POLICIES, LeastLoaded, RoundRobin, policy_of
from simulation.trace import ARRIVALS, Arrival, Lengths, Prefixes, TraceShape, read_trace, write_trace
from support.sequences import request, tiny_engine

from fastdeploy_lp.config import SchedulerConfig

COSTS = Costs(StepCosts((1.0, 512.0), (0.01, 0.3), 1e-4, 1e-7), ServerCosts(0.003, 0.004, 0.001, 1e-4))
# A step is a second, whatever it computes.
SECOND = Costs.of_steps(StepCosts((1.0, 2.0), (1.0, 1.0), 0.0, 0.0))
SMALL = ReplicaConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=24)
SHORT = TraceShape(4.0, Lengths(12.0, 0.8, 30), Lengths(8.0, 0.8, 24), Prefixes(3, 8, 0.6))
VOCAB = 100


def played(costs: Costs, config: ReplicaConfig, *, seed: int = 0, replicas: int = 2, **options: object) -> Played:
    """A short trace, served."""
    policy = policy_of(str(options.pop("policy", "least loaded")), replicas, seed)
    shape = replace(SHORT, rate=float(str(options.pop("rate", 20.0))))
    skip_ahead = bool(options.pop("skip_ahead", True))
    return Fleet(replicas, policy, config, costs, skip_ahead=skip_ahead).play(shape.requests(10.0, seed))


def tokens_of(arrival: Arrival) -> list[int]:
    """The prompt in a small vocabulary: alike exactly where the simulated prompts are."""
    prefix = random.Random(f"prefix {arrival.prefix}").choices(range(VOCAB), k=arrival.prefix_tokens)
    own = random.Random(f"own {arrival.number}").choices(range(VOCAB), k=arrival.prompt_tokens - arrival.prefix_tokens)
    # Even one equal token after the prefix would be shared.
    return [*prefix, VOCAB + arrival.number, *own[1:]]


def real_schedule(trace: list[Arrival], config: ReplicaConfig) -> tuple[list[list[tuple[int, int, int]]], int]:
    """What a real engine computes step by step if each step is a second; and how often it preempted."""
    engine = tiny_engine(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
    )
    scheduler = NotingScheduler(
        SchedulerConfig(config.max_num_seqs, config.max_num_batched_tokens), engine.blocks, engine.worker
    )
    engine.scheduler = scheduler
    waiting, now = list(trace), 0.0
    steps: list[list[tuple[int, int, int]]] = []
    while waiting or engine.has_work:
        if not engine.has_work:
            now = waiting[0].time
        while waiting and waiting[0].time <= now:
            arrival = waiting.pop(0)
            engine.add(request(str(arrival.number), tokens_of(arrival), max_tokens=arrival.output_tokens))
        engine.step()
        steps.append([(int(c.sequence.request_id), c.start, c.num_tokens) for c in scheduler.last])
        now += 1.0
    return steps, scheduler.num_preemptions


@pytest.mark.parametrize("num_blocks", [24, 200])
def test_schedule_is_the_real_engines(num_blocks: int) -> None:
    """The same chunks in the same steps, with shared prefixes, cut prompts and, with few blocks, preemptions."""
    config = replace(SMALL, num_blocks=num_blocks)
    trace = list(replace(SHORT, rate=0.4).requests(100.0, seed=5))
    expected, preemptions = real_schedule(trace, config)
    replica = Replica(config, SECOND, note=True)
    for arrival in trace:
        while replica.ends is not None and replica.ends < arrival.time:
            replica.finish()
        replica.take(arrival, arrival.time)
    while replica.ends is not None:
        replica.finish()
    assert replica.schedule == expected
    assert replica.num_preemptions == preemptions
    assert (preemptions > 0) == (num_blocks == 24)
    assert replica.cache_hits[0] > 0
    assert any(len(step) > 1 and any(count > 1 for _, _, count in step) for step in expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_once(policy: str, seed: int) -> None:
    """With queues and preemptions, whatever the policy; nobody is served before arriving."""
    result = played(COSTS, replace(SMALL, num_blocks=18), seed=seed, policy=policy, rate=60.0)
    numbers = sorted(each.arrival.number for each in result.served)
    assert numbers == list(range(result.arrivals))
    assert result.arrivals > 100
    assert sum(replica.num_preemptions for replica in result.replicas) > 0
    for each in result.served:
        assert each.first is not None
        assert each.ended is not None
        assert each.scheduled is not None
        assert each.arrival.time < each.queued <= each.scheduled < each.first <= each.ended
        assert len(each.sequence.output_token_ids) == each.arrival.output_tokens
        assert each.sequence.block_table == []
    tokens = sum(each.arrival.output_tokens - 1 for each in result.served)
    assert sum(sum(replica.gaps.counts.values()) for replica in result.replicas) == tokens


@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_skipping_ahead_changes_nothing(rate: float) -> None:
    """Stretches of steps and single steps give the same times, queues and cache, in fewer calls of the scheduler."""
    skipped, stepped = (outcome_of(played(COSTS, SMALL, rate=rate, skip_ahead=skip)) for skip in (True, False))
    assert skipped.stretches < stepped.stretches == stepped.steps == skipped.steps
    assert skipped.ttft_ms.p99 == pytest.approx(stepped.ttft_ms.p99)
    assert skipped.tpot_ms.mean == pytest.approx(stepped.tpot_ms.mean)
    assert skipped.itl_ms.mean == pytest.approx(stepped.itl_ms.mean, rel=0.01)
    assert (skipped.preemptions, skipped.cache_hits) == (stepped.preemptions, stepped.cache_hits)
    assert skipped.waiting == pytest.approx(stepped.waiting)


def test_same_seed_same_outcome() -> None:
    """And another one with another seed."""
    first, again, other = (outcome_of(played(COSTS, SMALL, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_sample_is_what_those_replicas_do_in_the_whole() -> None:
    """Where replicas are independent, the sampled ones serve the same requests at the same times."""
    trace = list(SHORT.requests(20.0, 3))
    whole, sample = (Fleet(4, RoundRobin(4, 0), SMALL, COSTS, sample=count).play(trace).served for count in (None, 2))
    ends = {each.arrival.number: each.ended for each in whole if each.replica < 2}
    assert ends == {each.arrival.number: each.ended for each in sample}


def test_capacity_is_where_queues_begin() -> None:
    """Below it nobody waits long; above it the queue grows with time."""
    rate = capacity(COSTS, ReplicaConfig(), SHORT)
    below, above = (
        outcome_of(
            Fleet(1, RoundRobin(1, 0), ReplicaConfig(), COSTS).play(replace(SHORT, rate=rate * share).requests(20.0, 0))
        )
        for share in (0.7, 1.5)
    )
    assert below.waiting < 1 < above.waiting
    assert above.requests_per_s == pytest.approx(rate, rel=0.1)


def test_least_loaded_has_equal_loads() -> None:
    """Loads never differ by more than one while requests only come, and the least loaded is found after they end."""
    policy = LeastLoaded(5, 0)
    arrival = Arrival(0, 0.0, 1, 1)
    for _ in range(12):
        policy.choose(arrival)
        assert max(policy.loads) - min(policy.loads) <= 1
    for _ in range(2):
        policy.ended(3)
    assert policy.choose(arrival) == 3


def test_prefix_affinity_finds_more_in_the_cache() -> None:
    """Than sending requests anywhere, and without a replica that has it all."""
    shape = replace(SHORT, rate=60.0, prefixes=Prefixes(60, 24, 1.0, exponent=0.0), prompt=Lengths(8.0, 0.5, 12))
    config = replace(SMALL, num_blocks=60, max_num_seqs=3)
    hits, shares = {}, {}
    for name in ("random", "prefix affine"):
        result = Fleet(4, policy_of(name, 4, 0), config, COSTS).play(shape.requests(10.0, 0))
        hits[name] = outcome_of(result).cache_hits
        served = [each.replica for each in result.served]
        shares[name] = max(served.count(replica) for replica in range(4)) / len(served)
    assert hits["prefix affine"] > 1.3 * hits["random"]
    assert shares["prefix affine"] < 0.4


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_traces_have_the_promised_shape(arrivals: str) -> None:
    """Rate, order and lengths; and gaps of which only Poisson's vary as much as they last."""
    shape = TraceShape(50.0, arrivals=arrivals, dwell=2.0)
    trace = list(shape.requests(400.0, 0))
    times = np.array([arrival.time for arrival in trace])
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert times[-1] < 400
    assert len(trace) / 400 == pytest.approx(50, rel=0.15)
    variation = gaps.std() / gaps.mean()
    assert variation == pytest.approx(1, rel=0.05) if arrivals == "poisson" else variation > 1.2
    assert np.mean([arrival.prompt_tokens for arrival in trace]) == pytest.approx(161, rel=0.1)
    assert np.mean([arrival.output_tokens for arrival in trace]) == pytest.approx(338, rel=0.15)
    assert [arrival.number for arrival in trace] == list(range(len(trace)))


def test_traces_repeat_and_can_be_kept(tmp_path: Path) -> None:
    """The same seed, the same trace, also from a file."""
    trace = list(SHORT.requests(5.0, 7))
    write_trace(tmp_path / "trace.json", trace)
    assert read_trace(tmp_path / "trace.json") == trace == list(SHORT.requests(5.0, 7))
    (tmp_path / "wrong.json").write_text('[{"number": "x"}]')
    with pytest.raises(ValueError, match=r"wrong\.json"):
        read_trace(tmp_path / "wrong.json")


def test_fit_finds_the_costs() -> None:
    """From steps that have exactly such costs."""
    draw = random.Random(0)
    shapes = [
        StepShape(samples + prompt, samples, (samples + prompt) * draw.randint(1, 1000))
        for samples, prompt in ((draw.randint(1, 32), draw.choice((0, 0, draw.randint(1, 480)))) for _ in range(400))
    ]
    truth = StepCosts((1.0, 8.0, 64.0, 512.0, 1024.0), (0.004, 0.005, 0.02, 0.15, 0.3), 1e-4, 1e-7)
    fitted = fit(shapes, [truth.seconds(shape) for shape in shapes])
    assert fitted.fit_error < 0.001
    assert fitted.costs.seconds(StepShape(20, 20, 4000)) == pytest.approx(
        truth.seconds(StepShape(20, 20, 4000)), rel=0.01
    )


@pytest.mark.parametrize("more", [0.0, 0.001, 0.1])
def test_a_cut_stretch_ends_with_the_step_that_runs(more: float) -> None:
    """Never before the arrival, never a whole step after it."""
    for time in np.linspace(0.01, 60, 400).tolist():
        stretch = Stretch(0.0, [], 40, 1.0, more)
        whole = stretch.ends
        stretch.cut(time)
        if time <= whole:
            assert stretch.ends >= time
            assert stretch.count == 1 or stretch.end_of(stretch.count - 1) < time
        else:
            assert stretch.count == 40


def test_a_request_that_does_not_fit_is_refused() -> None:
    """By name."""
    with pytest.raises(ValueError, match="request 3: longer than max_model_len"):
        Replica(SMALL, COSTS).take(Arrival(3, 0.0, 60, 10), 0.0)


def test_plots_are_drawings() -> None:
    """Well-formed, with a line for each curve; and nothing is drawn of what cannot be."""
    plot = Plot("title", [Curve("a", [(1.0, 2.0), (2.0, 30.0)]), Curve("b", [(1.0, 5.0)])], log_y=True)
    root = ElementTree.fromstring(render(plot))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    with pytest.raises(ValueError, match="positive"):
        render(Plot("title", [Curve("a", [(1.0, 0.0)])], log_y=True))
