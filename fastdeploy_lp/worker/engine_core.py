"""The core of serving: sequences in, one step at a time, what each step did out. Knows no sockets."""

from __future__ import annotations

from collections.abc import Iterable

import paddle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.messages import AddRequest, SequenceStep, StepOutputs
from fastdeploy_lp.worker.block_manager import BlockManager
from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.scheduler import Scheduler
from fastdeploy_lp.worker.sequence import Sequence


class EngineCore:
    """Continuous batching: sequences join and leave between steps."""

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain, *, show_progress: bool = False) -> None:
        config = fd_config.model_config
        self._eos_token_ids = config.eos_token_ids
        self._max_model_len = config.max_model_len
        self.blocks = BlockManager(fd_config.cache_config.num_blocks, fd_config.cache_config.block_size)
        self.scheduler = Scheduler(fd_config.scheduler_config.max_num_seqs, config.max_model_len, self.blocks)
        self.runner = ModelRunner(fd_config, chain, show_progress=show_progress)

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

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> StepOutputs:
        """Admit what fits, compute one token for every running sequence, and let the finished ones go."""
        for sequence in self.scheduler.admit():
            self.runner.share_inputs.assign(sequence)
        running = self.scheduler.running()
        tokens = self.runner.execute(running)
        steps = [self._advance(sequence, token) for sequence, token in zip(running, tokens.tolist(), strict=True)]
        return StepOutputs(steps, self.scheduler.num_running, self.scheduler.num_waiting)

    def _advance(self, sequence: Sequence, token: int) -> SequenceStep:
        sequence.append(token)
        if sequence.finish_reason is not None:
            self._leave(sequence)
        return SequenceStep(sequence.request_id, [token], sequence.finish_reason, sequence.stop_reason)

    def _leave(self, sequence: Sequence) -> None:
        self.runner.share_inputs.clear(sequence.slot)
        self.scheduler.release(sequence)
