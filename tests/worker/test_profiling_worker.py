"""The step by which a device's memory is measured, run on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
from paddle import Tensor
from support.device_like import device_like
from support.sequences import chain_of, request, run_to_end, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.layers.attention.prefix_attention import PrefixAttention
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.worker.kv_cache_spec import KVCacheSpec
from fastdeploy_lp.worker.profiling_worker import (
    BLOCKS_WHILE_MEASURING,
    ProfilingWorker,
    longest_continued_prompt,
    worst_case_sequences,
)
from fastdeploy_lp.worker.worker_base import start_worker


def started(fd_config: FDConfig, processors: list[str]) -> ProfilingWorker:
    worker = ProfilingWorker(fd_config, lambda: chain_of(processors, fd_config))
    worker.init_device()
    worker.load_model()
    return worker


@pytest.mark.parametrize(
    ("slots", "budget", "length", "count", "tokens"),
    [(8, 64, 64, 8, 8), (8, 5, 64, 5, 1), (2, 500, 64, 2, 63), (1, 64, 64, 1, 63), (4, 64, 1, 4, 1)],
)
def test_the_step_fills_its_budget_its_slots_or_its_contexts(
    slots: int, budget: int, length: int, count: int, tokens: int
) -> None:
    config = tiny_fd_config(max_num_seqs=slots, max_num_batched_tokens=budget, max_model_len=length)
    sequences = worst_case_sequences(config)
    assert [sequence.num_tokens for sequence in sequences] == [tokens] * count
    assert [sequence.slot for sequence in sequences] == list(range(count))
    for sequence in sequences:
        assert set(sequence.block_table) == {BLOCKS_WHILE_MEASURING - 1}
        assert len(sequence.block_table) * config.cache_config.block_size >= tokens


@pytest.mark.parametrize(
    ("budget", "length", "computed", "tokens"),
    [(16, 64, 47, 16), (500, 64, 1, 62), (1, 64, 62, 1), (16, 3, 1, 1), (16, 2, None, None)],
)
def test_the_second_step_continues_a_prompt_to_the_end_of_the_context(
    budget: int, length: int, computed: int | None, tokens: int | None
) -> None:
    """Attention to a long context needs the most memory after it has been computed, which new prompts do not show."""
    config = tiny_fd_config(max_num_batched_tokens=budget, max_model_len=length)
    found = [(each.num_computed, each.num_tokens - each.num_computed) for each in longest_continued_prompt(config)]
    assert found == ([] if computed is None else [(computed, tokens)])


def test_memory_is_measured_with_the_scores_of_the_longest_context(monkeypatch: pytest.MonkeyPatch) -> None:
    scores: list[tuple[int, int]] = []
    attended = PrefixAttention._attended

    def watched(self: PrefixAttention, queries: Tensor, *context: Tensor) -> Tensor:
        scores.append((queries.shape[0], context[-1].shape[1]))
        return attended(self, queries, *context)

    monkeypatch.setattr(PrefixAttention, "_attended", watched)
    config = tiny_fd_config(max_num_batched_tokens=16, max_model_len=64)
    with device_like():
        worker = started(config, [])
        worker.determine_available_memory()
    assert max(scores) == (16, 63)


def test_it_leaves_the_worker_as_it_was() -> None:
    config = tiny_fd_config()
    worker = started(config, ["LogitBiasLogitsProcessor"])
    share_inputs = worker.model_runner.share_inputs  # type: ignore[attr-defined]
    before = {name: np.copy(value) for name, value in share_inputs.items() if isinstance(value, np.ndarray)}
    worker.determine_available_memory()
    assert share_inputs["req_ids"] == [""] * config.scheduler_config.max_num_seqs
    for name, value in before.items():
        if name != "stop_flags":  # says who yielded in the last step
            np.testing.assert_array_equal(share_inputs[name], value)


def test_the_cache_gets_what_the_share_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started(tiny_fd_config(), [])
    free = iter([600])
    monkeypatch.setattr(worker, "_free_at_start", 1000)
    monkeypatch.setattr(type(current_platform()), "free_memory", lambda _: next(free))
    # Weights and the step took 400; a tenth of 1000 is to stay free.
    assert worker.determine_available_memory() == 500


def test_a_device_that_is_full_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started(tiny_fd_config(), [])
    monkeypatch.setattr(worker, "_free_at_start", 1000)
    monkeypatch.setattr(type(current_platform()), "free_memory", lambda _: 50)
    assert worker.determine_available_memory() == 0


def test_a_worker_that_has_measured_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens as one that has not, from a cache that is as large as memory allows."""
    platform = type(current_platform())
    monkeypatch.setattr(
        platform, "get_worker_class", lambda _: f"{ProfilingWorker.__module__}:{ProfilingWorker.__qualname__}"
    )
    monkeypatch.setattr("fastdeploy_lp.model_executor.models.decoder.compiled_ops", lambda: None)
    config = tiny_fd_config()
    per_block = KVCacheSpec.of(config).bytes_per_block
    monkeypatch.setattr(platform, "free_memory", lambda _: 40 * per_block)
    _, settled = start_worker(config, lambda: chain_of([], config))
    assert settled.cache_config.num_blocks == 36
    engines = [tiny_engine()]
    monkeypatch.undo()
    engines.append(tiny_engine())
    assert isinstance(engines[0].worker, ProfilingWorker)
    measured, other = (run_to_end(each, [request("r", [3, 1, 4, 1, 5], max_tokens=6)]) for each in engines)
    assert measured["r"].token_ids == other["r"].token_ids
