"""The log's line about the engine's load."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.client.engine_stats import LoggingStatLogger
from fastdeploy_lp.logits_processor import ProcessorStats
from fastdeploy_lp.stats import ArrivedRequestStats, FinishedRequestStats, IterationStats, SchedulerStats

STATS = SchedulerStats(
    num_running_reqs=3,
    num_waiting_reqs=2,
    kv_cache_blocks_used=10,
    kv_cache_blocks_total=40,
    prefix_cache_queries=30,
    prefix_cache_hits=15,
    num_preemptions=4,
    processors=[ProcessorStats("a", faults=2), ProcessorStats("b", faults=3)],
)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    found = [
        (record.getMessage(), record.__dict__["fields"])
        for record in caplog.records
        if record.name == "fastdeploy_lp.stats"
    ]
    caplog.clear()
    return found


def test_a_line_tells_of_what_happened_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    logger = LoggingStatLogger(tiny_fd_config())
    with caplog.at_level(logging.INFO, "fastdeploy_lp"):
        logger.log_engine_initialized()
        ((ready, room),) = lines(caplog)
        logger.log()
        assert lines(caplog) == []
        logger.record(None, IterationStats(0.0, arrived_requests=[ArrivedRequestStats(7, 1, 5)]))
        finished = [FinishedRequestStats("r", 0, "stop", 7, 3, 0)]
        logger.record(STATS, IterationStats(0.0, num_generation_tokens=14, finished_requests=finished))
        logger.log()
        ((load, fields),) = lines(caplog)
        logger.record(STATS, None)
        logger.log()
        assert lines(caplog) == []
    assert (ready, load) == ("engine ready", "engine load")
    assert room == {"slots": 8, "kv_cache_blocks": 128, "block_size": 4, "max_model_len": 64}
    prompt, generation = fields.pop("prompt_tokens_per_s"), fields.pop("generation_tokens_per_s")
    assert prompt > 0
    assert generation == pytest.approx(2 * prompt)
    assert fields == {
        "running": 3,
        "waiting": 2,
        "finished": 1,
        "kv_cache_usage": 0.25,
        "prefix_cache_hit_rate": 0.5,
        "preemptions": 4,
        "processor_faults": 5,
    }
