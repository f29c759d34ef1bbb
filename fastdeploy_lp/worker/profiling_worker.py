"""A worker on a device with separate memory: the memory left for the KV cache is measured, not estimated.

Not yet run on a GPU; tests run its most demanding step on a CPU.
"""

from __future__ import annotations

import paddle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.request.limits import MAX_LOGPROBS
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase
from fastdeploy_lp.worker.sequence import ScheduledChunk, Sequence
from fastdeploy_lp.worker.worker import Worker

# The null block, and one block for all writes while memory is measured.
BLOCKS_WHILE_MEASURING = 2
SOME_TOKEN = 0


class ProfilingWorker(Worker):
    """Assigns the cache the memory that `gpu_memory_utilization` allows beyond weights, activations and other uses."""

    def init_device(self) -> None:
        """See `WorkerBase.init_device`; records the free memory before anything is on the device."""
        self._free_at_start = current_platform().free_memory()
        super().init_device()

    def determine_available_memory(self) -> int:
        """Returns bytes for the cache, after steps that need the most memory of any step.

        Paddle's allocator keeps their memory for later steps.
        """
        self.model_runner.initialize_cache(BLOCKS_WHILE_MEASURING)
        # The step ends with a read, which waits for the device.
        run_worst_case(self.model_runner, self.fd_config)
        kept_free = (1 - self.fd_config.cache_config.gpu_memory_utilization) * self._free_at_start
        return max(0, int(current_platform().free_memory() - kept_free))


@paddle.no_grad()  # type: ignore[untyped-decorator]
def run_worst_case(runner: ModelRunnerBase, fd_config: FDConfig) -> None:
    """Runs two steps with the maximum number of tokens: the most demanding ones for the sampler and for attention.

    In the first, new prompts fill every slot; every row is drawn with all filters and returns the maximum number of
    logprobs, also for its prompt. In the second, a prompt continues to the end of the longest context.
    """
    for sequences in (worst_case_sequences(fd_config), longest_continued_prompt(fd_config)):
        for sequence in sequences:
            runner.enter(sequence)
        chunks = [ScheduledChunk(sequence, sequence.num_tokens - sequence.num_computed) for sequence in sequences]
        if chunks:
            runner.execute(chunks)
        for sequence in sequences:
            runner.leave(sequence.slot)


def worst_case_sequences(fd_config: FDConfig) -> list[Sequence]:
    """Returns one sequence per slot, of equal length, that fill the step's token budget or their contexts."""
    scheduler, length = fd_config.scheduler_config, fd_config.model_config.max_model_len
    count = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    # A sequence with a full context has no room for a token to generate.
    tokens = min(scheduler.max_num_batched_tokens // count, max(1, length - 1))
    logprobs = min(MAX_LOGPROBS, fd_config.model_config.vocab_size)
    params = SettledParams(
        max_tokens=1, temperature=1.0, top_p=0.9, min_p=0.01, seed=0, logprobs=logprobs, prompt_logprobs=logprobs
    )
    return [_sequence(fd_config, slot, tokens, params) for slot in range(count)]


def longest_continued_prompt(fd_config: FDConfig) -> list[Sequence]:
    """Returns a sequence with a full context, of which a step computes the maximum number of tokens.

    None for a context in which no prompt can continue.
    """
    tokens = fd_config.model_config.max_model_len - 1
    computed = max(1, tokens - fd_config.scheduler_config.max_num_batched_tokens)
    if computed >= tokens:
        return []
    sequence = _sequence(fd_config, 0, tokens, SettledParams(max_tokens=1, temperature=0.0))
    sequence.num_computed = computed
    return [sequence]


def _sequence(fd_config: FDConfig, slot: int, tokens: int, params: SettledParams) -> Sequence:
    """Returns a sequence in a slot, all blocks of which are one and the same."""
    request = AddRequest(f"memory-{slot}", [SOME_TOKEN] * tokens, params, Selection())
    sequence = Sequence.from_request(request, (), fd_config.model_config.max_model_len)
    blocks = -(-tokens // fd_config.cache_config.block_size)
    sequence.slot, sequence.block_table = slot, [BLOCKS_WHILE_MEASURING - 1] * blocks
    return sequence
