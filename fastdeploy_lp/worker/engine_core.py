"""The serving core: takes sequences, runs one step at a time, returns each step's results. Uses no sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import paddle
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, ProcessorStats, SlotFailure
from fastdeploy_lp.messages import AddRequest, SequenceStep, StepOutputs
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.stats import DraftStats, SchedulerStats
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.kv_events import KVEvent
from fastdeploy_lp.worker.model_runner_base import StepResult
from fastdeploy_lp.worker.preparing import Preparing
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import NO_SLOT, ScheduledChunk, Sequence
from fastdeploy_lp.worker.worker_base import start_worker

STATS_EVERY_STEPS = 16


class EngineCore:
    """Continuous batching on one worker: sequences join and leave between steps.

    chain: the logits-processor chain, or a function that builds it once the worker's device is set.
    """

    def __init__(
        self,
        fd_config: FDConfig,
        chain: LogitsProcessorChain | Callable[[], LogitsProcessorChain],
        *,
        show_progress: bool = False,
    ) -> None:
        config = fd_config.model_config
        self._eos_token_ids = config.eos_token_ids
        self._max_model_len = config.max_model_len
        build_chain = (lambda: chain) if isinstance(chain, LogitsProcessorChain) else chain
        self.worker, settled = start_worker(fd_config, build_chain, show_progress=show_progress)
        self.runner = self.worker.model_runner
        self.blocks = _block_manager(settled, self.runner.block_copier())
        self.preparing = Preparing(self.runner.chain, fd_config.structured_outputs_config.code_timeout)
        self.scheduler = Scheduler(fd_config.scheduler_config, self.blocks, self.worker)
        self._steps_since_stats = 0
        self._troubles_told = 0
        self._drafts: dict[str, DraftStats] = {}
        # True if the last step found every sequence's slot held.
        self._held_up = False
        self.runner.held.on_release(self.preparing.wake_up.signal)

    @property
    def has_work(self) -> bool:
        """True if any sequence is unfinished."""
        return self.scheduler.has_work or len(self.preparing) > 0

    @property
    def can_step(self) -> bool:
        """True if a step has work now; otherwise `preparing.wake_up` is signalled once it has."""
        held_up = self._held_up and not self.runner.held.have_news
        return (self.scheduler.has_work and not held_up) or self.preparing.has_news

    def add(self, request: AddRequest) -> None:
        """Queues a request once the logits processors it needs are built."""
        self._held_up = False
        sequence = Sequence.from_request(request, self._eos_token_ids, self._max_model_len)
        # Nothing of a pooled prompt is sampled, so that it needs no processors, not even mandatory ones.
        if sequence.pooling is not None or self.preparing.add(sequence):
            self.scheduler.add(sequence)

    def finish_preparing(self) -> list[SequenceStep]:
        """Waits until all processors are built; returns the final steps of sequences that cannot run."""
        steps: list[SequenceStep] = []
        while self.preparing.is_building:
            steps += self._admit_prepared()
        return steps

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drops requests; frees their slots, arguments and blocks at once."""
        self._held_up = False
        aborted = set(request_ids)
        self.scheduler.abort(aborted)
        self.preparing.abort(aborted)

    def reset_processor(self, name: str) -> None:
        """Puts a quarantined logits processor back into service."""
        self.runner.chain.reset(name)

    def load(self) -> StepOutputs:
        """Returns the load and the logits processors' counters, without running a step."""
        return self._outputs([], list(self.runner.chain.stats.values()))

    def take_cache_events(self) -> list[KVEvent]:
        """Returns prefix-cache changes since the last call; empty unless the configuration publishes events."""
        return self.blocks.take_events()

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> StepOutputs:
        """Runs the scheduled chunks, returns new tokens and pooled prompts, and releases finished sequences.

        When all sequences are being prepared or held, waits until a processor is built, or a mask computed, for one.
        """
        unprepared = self._admit_prepared() if len(self.preparing) else []
        if not self.scheduler.has_work:
            return self._outputs(unprepared, list(self.runner.chain.stats.values()))
        began = time.monotonic()
        chunks = self._scheduled()
        if not chunks:
            return self._outputs(unprepared, list(self.runner.chain.stats.values()))
        steps = self._rounds(chunks)
        seconds = time.monotonic() - began
        self.scheduler.took(chunks, seconds, self.runner.chain.stats)
        return self._outputs(unprepared + steps, self._changed_stats(), seconds)

    def _rounds(self, chunks: list[ScheduledChunk]) -> list[SequenceStep]:
        """Executes the chunks and verifies their drafts in rounds; returns each sequence's steps in order."""
        result, going = self.worker.execute_model(chunks), chunks
        steps: dict[str, list[SequenceStep]] = {chunk.sequence.request_id: [] for chunk in chunks}
        while going:
            tokens = iter(result.tokens.tolist())
            for chunk in going:
                known = steps[chunk.sequence.request_id]
                for step in self._taken(chunk, next(tokens) if chunk.samples else None, result):
                    if not (known and known[-1].take(step)):
                        known.append(step)
            going = [chunk for chunk in going if self._goes_on(chunk)]
            if going:
                result = self.worker.verify(going)
        for chunk in chunks:
            if chunk.draft:
                self._count_draft(chunk)
            if chunk.sequence.drafted and (told := steps[chunk.sequence.request_id]):
                _tell_drafts(chunk.sequence, told[0])
        return [step for each in steps.values() for step in each]

    def _taken(self, chunk: ScheduledChunk, token: int | None, result: StepResult) -> Iterator[SequenceStep]:
        """Yields the steps of a chunk's sequence: its token, and further tokens while it runs."""
        sequence, slot = chunk.sequence, chunk.sequence.slot
        run = [] if token is None else [token, *result.further.get(slot, ())]
        # The result's failures, completed and undecided slots belong to the last tokens.
        ends = len(run) > 1 and (slot in result.completed or slot in result.undecided)
        begun = replace(result, completed=frozenset(), undecided=frozenset()) if ends else result
        for each in run[:-1]:
            self.blocks.share_computed(sequence)
            yield self._advance(sequence, each, begun)
            if not self._was_right(chunk):
                return
        yield from self._take(chunk, run[-1] if run else None, result)

    def _take(self, chunk: ScheduledChunk, token: int | None, result: StepResult) -> Iterable[SequenceStep]:
        """Returns the steps of a chunk's sequence: its new token, its vector or its failure; none for no end."""
        sequence = chunk.sequence
        # Before the sequence can leave: later sequences may share its computed blocks.
        self.blocks.share_computed(sequence)
        if sequence.slot in result.failures:
            return (self._fail(sequence, result.failures[sequence.slot]),)
        if token is not None:
            if sequence.max_rewind or sequence.finish_reason is not None or sequence.slot in result.undecided:
                return self._advance_or_rewind(chunk, token, result)
            return (self._advance(sequence, token, result),)
        return (self._pool(sequence, result.pooled[sequence.slot]),) if chunk.pools else ()

    def _goes_on(self, chunk: ScheduledChunk) -> bool:
        """Returns True if the step has a row for a chunk's next token, which can be sampled now."""
        if not self._was_right(chunk):
            return False
        if self.worker.holds(chunk.sequence.slot):
            # A later step computes the last token again, whose row this step drops.
            chunk.sequence.num_computed -= 1
            return False
        return True

    def _was_right(self, chunk: ScheduledChunk) -> bool:
        """Accepts a chunk's next draft token if that was sampled, so that the step has the row of the one after it."""
        sequence, accepted = chunk.sequence, chunk.accepted
        if sequence.slot == NO_SLOT or accepted == len(chunk.draft):
            return False
        if chunk.over or sequence.finish_reason is not None:
            return False
        if sequence.output_token_ids[-1] != chunk.draft[accepted]:
            return False
        chunk.accepted += 1
        sequence.num_computed += 1
        return True

    def _count_draft(self, chunk: ScheduledChunk) -> None:
        chunk.sequence.drafted += len(chunk.draft)
        chunk.sequence.accepted += chunk.accepted
        stats = self._drafts.setdefault(chunk.draft_kind, DraftStats(chunk.draft_kind))
        stats.add(len(chunk.draft), chunk.accepted)

    def _scheduled(self) -> list[ScheduledChunk]:
        """Returns the step's chunks; empty if every sequence in a slot is held while others are being prepared."""
        if self._held_up and not (len(self.preparing) or self.runner.held.have_news):
            self.runner.held.wait()
        if self.runner.held.have_news:
            self.runner.held.take_news()
        chunks = self.scheduler.schedule()
        self._held_up = not chunks
        return chunks

    def _admit_prepared(self) -> list[SequenceStep]:
        """Queues prepared sequences; returns the final steps of sequences that cannot run."""
        ready, failed = self.preparing.take(wait=not self.can_step)
        for sequence in ready:
            self.scheduler.add(sequence)
        return [_failed(sequence, failure) for sequence, failure in failed]

    def _outputs(
        self, steps: list[SequenceStep], processors: list[ProcessorStats] | None, step_time: float = 0.0
    ) -> StepOutputs:
        blocks, scheduler = self.blocks, self.scheduler
        stats = SchedulerStats(
            num_running_reqs=scheduler.num_running,
            num_waiting_reqs=scheduler.num_waiting + len(self.preparing),
            kv_cache_blocks_used=blocks.num_used,
            kv_cache_blocks_total=blocks.num_total,
            prefix_cache_queries=blocks.num_queried_tokens,
            prefix_cache_hits=blocks.num_hit_tokens,
            num_preemptions=scheduler.num_preemptions,
            step_time=step_time,
            drafts=list(self._drafts.values()),
        )
        return StepOutputs(steps, stats, processors)

    def _advance(self, sequence: Sequence, token: int, result: StepResult) -> SequenceStep:
        slot, actions = sequence.slot, result.actions.get(sequence.slot)
        finish = None if actions is None else actions.finish
        tokens = [token] if finish is None and slot not in result.overrun else []
        if tokens:
            sequence.append(token)
            if slot in result.completed:
                sequence.complete()
        elif slot in result.overrun:
            sequence.complete()
        elif finish is not None:
            sequence.stop(finish)
        # Processors that may take back the last token, and the grammar, are to see it first.
        if sequence.finish_reason is not None and not (tokens and (sequence.max_rewind or slot in result.undecided)):
            self._end(sequence)
        step = SequenceStep(sequence.request_id, tokens, sequence.finish_reason, sequence.stop_reason)
        if len(sequence.output_token_ids) == len(tokens):
            step.num_cached_tokens, step.scheduled_at = sequence.num_cached_tokens, sequence.scheduled_at
        if actions is not None:
            step.emitted = actions.values
            self.runner.chain.count_actions(actions)
        step.prompt_logprobs = result.prompt_logprobs.get(slot)
        if not tokens:
            return step
        if slot in result.logprobs:
            step.logprobs = [result.logprobs[slot]]
        if slot in result.traces:
            step.trace = [result.traces[slot]]
        if slot in result.shadows:
            step.shadows = [result.shadows[slot]]
        return step

    def _advance_or_rewind(self, chunk: ScheduledChunk, token: int, result: StepResult) -> list[SequenceStep]:
        """Returns the steps that are final after this step, of a sequence whose tokens may be taken back.

        The last token of a sequence without such tokens is final once it is known whether it completes the text.
        """
        sequence, slot = chunk.sequence, chunk.sequence.slot
        actions = result.actions.get(slot)
        if actions is not None and actions.rewind is not None:
            self.runner.chain.count_actions(actions)
            self.scheduler.rewind(sequence, actions.rewind, actions.rewound_by)
            chunk.over = True
            return []
        if sequence.finish_reason is None:
            sequence.withheld.add(self._advance(sequence, token, result))
        else:
            # Its last token has come before. Nothing takes it back, and nothing follows it.
            if slot in result.overrun:
                sequence.withheld.complete()
            self._end(sequence)
        keep = sequence.max_rewind or int(sequence.finish_reason is not None)
        released = sequence.withheld.release(0 if sequence.slot == NO_SLOT else keep)
        if sequence.max_rewind:
            sequence.totals.rewindable = len(sequence.withheld)
        return released

    def _pool(self, sequence: Sequence, vector: NDArray[np.float32]) -> SequenceStep:
        if not np.isfinite(vector).all():
            return self._fail(sequence, SlotFailure("the model's hidden states of this prompt are not finite"))
        self._end(sequence)
        return SequenceStep(
            sequence.request_id,
            [],
            "stop",
            num_cached_tokens=sequence.num_cached_tokens,
            scheduled_at=sequence.scheduled_at,
            pooled=vector.astype("<f4").tobytes(),
        )

    def _fail(self, sequence: Sequence, failure: SlotFailure) -> SequenceStep:
        self._end(sequence)
        return _failed(sequence, failure)

    def _end(self, sequence: Sequence) -> None:
        """Ends a running sequence."""
        self.scheduler.release(sequence)
        self.preparing.forget(sequence.request_id)

    def _changed_stats(self) -> list[ProcessorStats] | None:
        """Returns the counters when work runs out, troubles change, or every `STATS_EVERY_STEPS` steps; else None."""
        self._steps_since_stats += 1
        if self.scheduler.has_work and self._steps_since_stats < STATS_EVERY_STEPS and not self._troubles_changed():
            return None
        self._steps_since_stats = 0
        return list(self.runner.chain.stats.values())

    def _troubles_changed(self) -> bool:
        troubles = sum(stats.troubles for stats in self.runner.chain.stats.values())
        changed, self._troubles_told = troubles != self._troubles_told, troubles
        return changed


def _tell_drafts(sequence: Sequence, step: SequenceStep) -> None:
    step.drafted, step.accepted = sequence.drafted, sequence.accepted
    sequence.drafted = sequence.accepted = 0


def _failed(sequence: Sequence, failure: SlotFailure) -> SequenceStep:
    return SequenceStep(
        sequence.request_id,
        [],
        error=failure.message,
        unavailable=failure.quarantined,
        by_request=failure.by_request,
    )


def _block_manager(fd_config: FDConfig, copy_block: BlockCopier | None) -> BlockManager:
    cache = fd_config.cache_config
    return BlockManager(
        cache.num_blocks,
        cache.block_size,
        prefix_caching=cache.enable_prefix_caching,
        copy_block=copy_block,
        record_events=cache.cache_queue_port is not None,
    )
