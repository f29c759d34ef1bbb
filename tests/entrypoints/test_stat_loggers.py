"""What stat loggers are told, held against the answers that requests got."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.stat_loggers import Keeps
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp import LLM, AsyncLLM, PoolingParams, SamplingParams
from fastdeploy_lp.engine.errors import EngineDeadError
from fastdeploy_lp.stats import FinishedRequestStats, IterationStats, SchedulerStats

BIAS = "LogitBiasLogitsProcessor"
CONTEXT = 128


class Raises(Keeps):
    """Fails at the first step of the worker."""

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        super().record(scheduler_stats, iteration_stats, engine_idx)
        if scheduler_stats is not None and iteration_stats is not None:
            raise RuntimeError("no disk")


class Made:
    """An LLM and the loggers that it made."""

    def __init__(self, model: str) -> None:
        self.keeps: list[Keeps] = []
        self.raises: list[Raises] = []
        options: dict[str, Any] = {"max_model_len": CONTEXT, "max_num_seqs": 2}
        self.llm = LLM(
            model,
            logits_processors=[BIAS, "support.served_faults:RaisesOnBoom"],
            logits_processors_max_faults=0,
            stat_loggers=[self._raises, self._keeps],
            **options,
        )

    def _keeps(self, fd_config: Any, engine_index: int) -> Keeps:
        self.keeps.append(Keeps(fd_config, engine_index))
        return self.keeps[-1]

    def _raises(self, fd_config: Any, engine_index: int) -> Raises:
        self.raises.append(Raises(fd_config, engine_index))
        return self.raises[-1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def made(model: str) -> Iterator[Made]:
    running = Made(model)
    yield running
    running.llm.shutdown()


@pytest.fixture
def keeps(made: Made) -> Keeps:
    """The one logger, which forgets what tests before this one did."""
    (keeping,) = made.keeps
    keeping.iterations.clear()
    del keeping.scheduler[:-1]
    return keeping


def test_they_are_made_before_the_start_and_told_of_it(made: Made, keeps: Keeps) -> None:
    assert keeps.engine_index == 0
    assert keeps.fd_config.model_config.max_model_len == CONTEXT
    # The processors, before anything has run.
    assert keeps.told[:2] == ["record", "initialized"]


def test_what_is_told_is_what_the_answers_hold(made: Made, keeps: Keeps) -> None:
    def params(count: int, **fields: Any) -> SamplingParams:
        return SamplingParams(max_tokens=count, ignore_eos=True, temperature=0, **fields)

    biased = {"logits_processors_args": {"logit_bias": {7: 100.0}}}
    outputs = made.llm.generate(
        ["the dog", "the quick brown fox", "over the lazy dog"],
        [params(3), params(5, n=2), params(9, **biased)],
        use_tqdm=False,
    )
    completions = [(output, each) for output in outputs for each in output.completions]
    assert sum(each.num_generation_tokens for each in keeps.iterations) == sum(
        len(each.token_ids) for _, each in completions
    )
    assert [(each.num_prompt_tokens, each.n, each.max_tokens) for each in keeps.arrived] == [
        (len(output.prompt_token_ids), n, most) for output, n, most in zip(outputs, (1, 2, 1), (3, 5, 9), strict=True)
    ]
    told = {(each.request_id, each.index): each for each in keeps.finished}
    assert len(told) == len(keeps.finished) == 4
    for output, completion in completions:
        stats = told[output.request_id, completion.index]
        assert stats.finish_reason == completion.finish_reason == "length"
        assert stats.num_generation_tokens == stats.max_tokens_param == len(completion.token_ids)
        assert stats.num_prompt_tokens == len(output.prompt_token_ids)
        check_times(stats)
    assert [told[output.request_id, 0].processors for output in outputs] == [(), (), (BIAS,)]
    first = [each for iteration in keeps.iterations for each in iteration.time_to_first_tokens_iter]
    between = [each for iteration in keeps.iterations for each in iteration.inter_token_latencies_iter]
    assert sorted(first) == sorted(each.time_to_first_token or 0.0 for each in keeps.finished)
    assert len(between) == sum(each.num_generation_tokens - 1 for each in keeps.finished)
    assert sum(between) == pytest.approx(sum(each.decode_time or 0.0 for each in keeps.finished))


def check_times(stats: FinishedRequestStats) -> None:
    """The parts add up."""
    assert stats.queued_time is not None
    assert stats.prefill_time is not None
    assert stats.decode_time is not None
    assert stats.mean_time_per_output_token is not None
    assert min(stats.queued_time, stats.prefill_time, stats.decode_time) >= 0
    assert stats.time_to_first_token == pytest.approx(stats.queued_time + stats.prefill_time)
    assert stats.inference_time == pytest.approx(stats.prefill_time + stats.decode_time)
    assert stats.e2e_latency == pytest.approx(stats.queued_time + (stats.inference_time or 0.0))
    between = stats.mean_time_per_output_token * (stats.num_generation_tokens - 1)
    assert between == pytest.approx(stats.decode_time)


def test_the_workers_account_comes_with_every_step(made: Made, keeps: Keeps) -> None:
    biased = SamplingParams(max_tokens=20, ignore_eos=True, logits_processors_args={"logit_bias": {7: 1.0}})
    prompt = [5] * 40
    made.llm.generate([prompt], biased, use_tqdm=False)
    (before,) = keeps.scheduler[:1]
    steps = keeps.scheduler[1:]
    assert all(each.step_time > 0 for each in steps)
    assert max(each.num_running_reqs for each in steps) == 1
    assert steps[-1].num_running_reqs == steps[-1].num_waiting_reqs == 0
    assert 0 < max(each.kv_cache_usage for each in steps) <= 1
    assert steps[-1].prefix_cache_queries - before.prefix_cache_queries >= len(prompt)
    assert [each.name for each in steps[-1].processors] == [BIAS, "RaisesOnBoom"]
    assert steps[-1].processors[0].requests == before.processors[0].requests + 1
    assert steps[-1].processors[0].seconds > before.processors[0].seconds
    made.llm.generate([prompt], biased, use_tqdm=False)
    (finished,) = keeps.finished[1:]
    assert finished.num_cached_tokens >= 32
    assert keeps.scheduler[-1].prefix_cache_hits - before.prefix_cache_hits >= 32


def test_a_request_that_cannot_go_on_is_told_as_an_error(made: Made, keeps: Keeps) -> None:
    faulty = SamplingParams(max_tokens=5, logits_processors_args={"boom": 0})
    (output,) = made.llm.generate("the dog", faulty, use_tqdm=False, raise_on_error=False)
    assert output.error_code == 500
    (finished,) = keeps.finished
    assert (finished.finish_reason, finished.num_generation_tokens) == ("error", 0)
    assert "RaisesOnBoom" in finished.processors
    assert finished.e2e_latency is None
    assert keeps.scheduler[-1].processors[1].faults > 0


def test_a_prompt_that_is_pooled_is_told_too(made: Made, keeps: Keeps) -> None:
    (output,) = made.llm.encode("the quick brown fox", PoolingParams(), use_tqdm=False)
    ((arrived,), (finished,)) = keeps.arrived, keeps.finished
    assert arrived.num_prompt_tokens == finished.num_prompt_tokens == len(output.prompt_token_ids)
    assert (finished.finish_reason, finished.num_generation_tokens) == ("stop", 0)
    assert finished.time_to_first_token is finished.decode_time is finished.mean_time_per_output_token is None
    assert finished.queued_time is not None
    assert finished.inference_time is not None
    assert finished.e2e_latency == pytest.approx(finished.queued_time + finished.inference_time)


def test_one_that_failed_is_told_nothing_more_and_hurt_nobody(made: Made, keeps: Keeps) -> None:
    made.llm.generate(["the dog"], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    (failed,) = made.raises
    assert sum(each.num_generation_tokens for each in failed.iterations) <= 2
    assert sum(each.num_generation_tokens for each in keeps.iterations) == 4


def test_aborts_the_log_and_the_end_are_told(model: str) -> None:
    kept: list[Keeps] = []

    def make(fd_config: Any, engine_index: int) -> Keeps:
        kept.append(Keeps(fd_config, engine_index))
        return kept[-1]

    async def run() -> None:
        async with AsyncLLM(model, max_num_seqs=1, stat_loggers=[make], log_stats_interval=3600) as llm:
            endless = SamplingParams(ignore_eos=True)
            async with aclosing(llm.generate([5, 6], endless, "left")) as outputs:  # type: ignore[type-var]
                await anext(outputs)
            left = [each for each in kept[0].finished if each.finish_reason == "abort"]
            assert [each.request_id.startswith("left") for each in left] == [True]
            assert left[0].num_generation_tokens >= 1
            running = llm.generate([5, 6], endless, "killed")
            await anext(running)
            await llm.shutdown()
            with pytest.raises(EngineDeadError, match="shutting down"):
                async for _ in running:
                    pass

    asyncio.run(run())
    (keeping,) = kept
    assert keeping.finished[-1].finish_reason == "error"
    assert keeping.finished[-1].request_id.startswith("killed")
    assert keeping.scheduler[-1].num_running_reqs == 0
    assert keeping.told[-1] == "log"
    assert keeping.told.count("log") == 1


def test_an_option_that_cannot_be_is_told(model: str, tmp_path: Path) -> None:
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"log_stats_interval: .* must be 0 or more seconds"):
            LLM(model, log_stats_interval=wrong)
    with pytest.raises(ValueError, match=r"stat_loggers\.0: must be a class"):
        LLM(model, stat_loggers=[dict])  # type: ignore[list-item]
