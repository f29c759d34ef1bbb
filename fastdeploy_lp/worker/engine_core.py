"""The core of serving: sequences in, one step at a time, what each step did out. Knows no sockets."""

from __future__ import annotations

from collections.abc import Iterable

import paddle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, ProcessorStats, SlotFailure
from fastdeploy_lp.messages import AddRequest, SequenceStep, StepOutputs
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.model_runner import ModelRunner, StepResult
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import Sequence

STATS_EVERY_STEPS = 16


class EngineCore:
    """Continuous batching: sequences join and leave between steps."""

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain, *, show_progress: bool = False) -> None:
        config = fd_config.model_config
        self._eos_token_ids = config.eos_token_ids
        self._max_model_len = config.max_model_len
        self.blocks = BlockManager(fd_config.cache_config.num_blocks, fd_config.cache_config.block_size)
        self.scheduler = Scheduler(fd_config.scheduler_config.max_num_seqs, config.max_model_len, self.blocks)
        self.runner = ModelRunner(fd_config, chain, show_progress=show_progress)
        self._steps_since_stats = 0
        self._faults_told = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    def add(self, request: AddRequest) -> None:
        """Queue a request."""
        self.scheduler.add(Sequence.from_request(request, self._eos_token_ids, self._max_model_len))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; their slots, arguments and blocks are free at once."""
        for sequence in self.scheduler.take_out(set(request_ids)):
            self._leave(sequence)

    def reset_processor(self, name: str) -> None:
        """Put a quarantined logits processor back into service."""
        self.runner.chain.reset(name)

    def load(self) -> StepOutputs:
        """What a step would tell of the load and of the logits processors, without a step."""
        stats = list(self.runner.chain.stats.values())
        return StepOutputs([], self.scheduler.num_running, self.scheduler.num_waiting, stats)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> StepOutputs:
        """Admit what fits, compute one token for every running sequence, and let the finished ones go."""
        for sequence in self.scheduler.admit():
            self.runner.enter(sequence)
        running = self.scheduler.running()
        result = self.runner.execute(running)
        steps = [
            self._fail(sequence, result.failures[sequence.slot])
            if sequence.slot in result.failures
            else self._advance(sequence, token, result)
            for sequence, token in zip(running, result.tokens.tolist(), strict=True)
        ]
        return StepOutputs(steps, self.scheduler.num_running, self.scheduler.num_waiting, self._changed_stats())

    def _advance(self, sequence: Sequence, token: int, result: StepResult) -> SequenceStep:
        slot = sequence.slot
        sequence.append(token)
        if sequence.finish_reason is not None:
            self._leave(sequence)
        step = SequenceStep(sequence.request_id, [token], sequence.finish_reason, sequence.stop_reason)
        if slot in result.logprobs:
            step.logprobs = [result.logprobs[slot]]
        step.prompt_logprobs = result.prompt_logprobs.get(slot)
        return step

    def _fail(self, sequence: Sequence, failure: SlotFailure) -> SequenceStep:
        self._leave(sequence)
        return SequenceStep(sequence.request_id, [], error=failure.message, unavailable=failure.quarantined)

    def _leave(self, sequence: Sequence) -> None:
        self.runner.leave(sequence.slot)
        self.scheduler.release(sequence)

    def _changed_stats(self) -> list[ProcessorStats] | None:
        """The counters, when a batch has ended or once in a while during a long one; None in between."""
        self._steps_since_stats += 1
        if self.scheduler.has_work and self._steps_since_stats < STATS_EVERY_STEPS and not self._faults_changed():
            return None
        self._steps_since_stats = 0
        return list(self.runner.chain.stats.values())

    def _faults_changed(self) -> bool:
        faults = sum(stats.faults + stats.slow_steps for stats in self.runner.chain.stats.values())
        changed, self._faults_told = faults != self._faults_told, faults
        return changed
