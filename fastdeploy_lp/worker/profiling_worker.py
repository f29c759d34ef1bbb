"""A worker on a device with memory of its own: what is left for the KV cache is measured, not reckoned.

Not yet run on a GPU; tests run its step of greatest demand on a CPU.
"""

from __future__ import annotations

import paddle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.request_limits import MAX_LOGPROBS
from fastdeploy_lp.sampling_params import SettledParams
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.worker import Worker

# The null block, and one that everything is written to while memory is measured.
BLOCKS_WHILE_MEASURING = 2
SOME_TOKEN = 0


class ProfilingWorker(Worker):
    """Gives the cache what `gpu_memory_utilization` leaves beside weights, activations and everything else."""

    def init_device(self) -> None:
        """As the interface says; takes note of the memory that is free before anything is on the device."""
        self._free_at_start = current_platform().free_memory()
        super().init_device()

    def determine_available_memory(self) -> int:
        """Bytes for the cache, after a step that asks for as much memory as any step can.

        What that step took stays with Paddle's allocator, so that later steps find it there.
        """
        self.model_runner.initialize_cache(BLOCKS_WHILE_MEASURING)
        # It ends with a read, for which the device has to be done.
        run_worst_case(self.model_runner, self.fd_config)
        kept_free = (1 - self.fd_config.cache_config.gpu_memory_utilization) * self._free_at_start
        return max(0, int(current_platform().free_memory() - kept_free))


@paddle.no_grad()  # type: ignore[untyped-decorator]
def run_worst_case(runner: ModelRunnerBase, fd_config: FDConfig) -> None:
    """One step of as many tokens as a step may have, in new prompts that fill every slot and ask for everything.

    Every row is drawn with all filters and gives the most logprobs there are, those of its prompt included.
    """
    sequences = worst_case_sequences(fd_config)
    for sequence in sequences:
        runner.enter(sequence)
    runner.execute([ScheduledChunk(sequence, sequence.num_tokens) for sequence in sequences])
    for sequence in sequences:
        runner.leave(sequence.slot)


def worst_case_sequences(fd_config: FDConfig) -> list[Sequence]:
    """Sequences of equal length, as many as have slots, which fill the step's budget of tokens or their contexts."""
    scheduler, length = fd_config.scheduler_config, fd_config.model_config.max_model_len
    count = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    # A sequence with a full context has no room for a token to generate.
    tokens = min(scheduler.max_num_batched_tokens // count, max(1, length - 1))
    blocks = -(-tokens // fd_config.cache_config.block_size)
    logprobs = min(MAX_LOGPROBS, fd_config.model_config.vocab_size)
    params = SettledParams(
        max_tokens=1, temperature=1.0, top_p=0.9, min_p=0.01, seed=0, logprobs=logprobs, prompt_logprobs=logprobs
    )
    sequences = []
    for slot in range(count):
        request = AddRequest(f"memory-{slot}", [SOME_TOKEN] * tokens, params, Selection())
        sequence = Sequence.from_request(request, (), length)
        sequence.slot, sequence.block_table = slot, [BLOCKS_WHILE_MEASURING - 1] * blocks
        sequences.append(sequence)
    return sequences
