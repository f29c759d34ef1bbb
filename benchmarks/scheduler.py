"""Host time that scheduling and the account of blocks take in a decode step, without a model.

    python benchmarks/scheduler.py --rows 32 --context 1024

Prints microseconds a step: the median, the mean and what 99 of 100 steps stay below.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping

import numpy as np

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import Sequence

BLOCK_SIZE = 16


class NobodyInSlots:
    """Stands where the model runner is."""

    computes_ahead = False

    def enter(self, sequence: Sequence) -> None: ...

    def leave(self, slot: int) -> None: ...

    def holds(self, slot: int) -> bool:  # noqa: ARG002
        return False

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:  # noqa: ARG002
        return {}


def decode_steps(rows: int, context: int, steps: int, *, caching: bool) -> list[float]:
    """Seconds of each step of `rows` sequences that have `context` tokens at the start."""
    length = context + steps + 1
    blocks = BlockManager(
        1 + rows * -(-length // BLOCK_SIZE), BLOCK_SIZE, prefix_caching=caching, record_events=caching
    )
    scheduler = Scheduler(SchedulerConfig(rows, max_num_batched_tokens=rows * context), blocks, NobodyInSlots())
    for row in range(rows):
        # Lengths differ, or all rows would complete their blocks in the same step.
        prompt = list(range(row, row + context - row % BLOCK_SIZE))
        request = AddRequest(str(row), prompt, SettledParams(max_tokens=length), Selection())
        scheduler.add(Sequence.from_request(request, (), 2 * length))
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        chunks = scheduler.schedule()
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens
            blocks.share_computed(chunk.sequence)
            if chunk.samples:
                chunk.sequence.append(7)
        blocks.take_events()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def main() -> None:
    """Measure with and without prefix caching."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    for caching in (True, False):
        micros = np.array(decode_steps(args.rows, args.context, args.steps, caching=caching)) * 1e6
        told = f"median {np.median(micros):.0f}, mean {micros.mean():.0f}, 99 % {np.percentile(micros, 99):.0f} µs"
        print(f"{args.rows} rows at {args.context} tokens, prefix caching {'on' if caching else 'off'}: {told}")


if __name__ == "__main__":
    main()
