"""Runs one step: share_inputs → chain state → forward → logits → chain → sampler → tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.registry import CausalLM, model_class
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk
from fastdeploy_lp.worker.block_tables import BlockTables
from fastdeploy_lp.worker.prompt_logprobs import PromptLogprobs
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.share_inputs import ShareInputs


class LogitsMask(Protocol):
    """Rules tokens out, as guided decoding does; applied before the chain and again behind it."""

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """The logits [rows, vocab_size] with ruled-out tokens at -inf; row r is slot `slots[r]`."""


@dataclass(frozen=True)
class StepResult:
    """One token for each chunk that samples [rows], whose requests have to end, and by slot the logprobs asked for.

    prompt_logprobs: one entry for each prompt token but the first, with a request's first token.
    """

    tokens: NDArray[np.int64]
    failures: dict[int, SlotFailure]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


class ModelRunner:
    """Owns the model, its KV cache, `share_inputs`, the chain and the sampler."""

    mask: LogitsMask | None = None

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain, *, show_progress: bool = False) -> None:
        self.chain = chain
        self.share_inputs = ShareInputs(fd_config.scheduler_config.max_num_seqs, fd_config.model_config.max_model_len)
        max_blocks = -(-fd_config.model_config.max_model_len // fd_config.cache_config.block_size)
        self._block_tables = BlockTables(fd_config.scheduler_config.max_num_seqs, max_blocks)
        self._sampler = Sampler(fd_config.model_config.logprobs_mode)
        self._model = _load_model(fd_config, show_progress=show_progress)
        config = fd_config.model_config
        self._prompt_logprobs = PromptLogprobs(
            self._sampler.ops, config.logprobs_mode, config.vocab_size, self._model.compute_logits
        )

    def enter(self, sequence: Sequence) -> None:
        """A sequence takes its slot."""
        self.share_inputs.assign(sequence)
        self.chain.enter(sequence.slot, sequence.selection)
        self._sampler.enter(sequence)
        self._prompt_logprobs.enter(sequence)

    def leave(self, slot: int) -> None:
        """A slot is empty again, its arguments and its processors' state with it."""
        self.share_inputs.clear(slot)
        self._block_tables.clear(slot)
        self.chain.leave(slot)
        self._sampler.leave(slot)
        self._prompt_logprobs.leave(slot)

    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Compute chunks, given in ascending slot order, and sample one token for each that ends its sequence.

        Row r of the logits is the r-th chunk that samples. A step in which none does leaves chain and sampler alone.
        """
        slots = np.array([chunk.sequence.slot for chunk in chunks if chunk.samples], np.int64)
        self.share_inputs.set_active(slots)
        if slots.size:
            self.chain.update_state(self.share_inputs)
        parts = [self._sequence_chunk(chunk) for chunk in chunks]
        hidden = self._split_hidden(self._model.forward(parts), chunks, parts)
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens
        return self._next_tokens(hidden, slots) if slots.size else StepResult(slots, {})

    def _sequence_chunk(self, chunk: ScheduledChunk) -> SequenceChunk:
        sequence, start = chunk.sequence, chunk.start
        every_row = self._prompt_logprobs.wants(sequence.slot)
        return SequenceChunk(
            token_ids=np.array(sequence.token_ids_between(start, start + chunk.num_tokens)),
            start=start,
            block_table=self._block_tables.row(sequence),
            num_outputs=chunk.num_tokens if every_row else int(chunk.samples),
        )

    def _split_hidden(self, hidden: Tensor, chunks: list[ScheduledChunk], parts: list[SequenceChunk]) -> Tensor:
        """Hand whole chunks on to prompt logprobs; gives the hidden states [rows, hidden_size] to sample from."""
        wanting = [row for row, chunk in enumerate(chunks) if self._prompt_logprobs.wants(chunk.sequence.slot)]
        if not wanting:
            return hidden
        ends = np.cumsum([part.num_outputs for part in parts])
        for row in wanting:
            rows = hidden[ends[row] - parts[row].num_outputs : ends[row]]
            self._prompt_logprobs.take(chunks[row].sequence.slot, rows)
        sampling = [row for row, chunk in enumerate(chunks) if chunk.samples]
        return paddle.gather(hidden, paddle.to_tensor(ends[sampling] - 1)) if sampling else hidden

    def _next_tokens(self, hidden: Tensor, slots: NDArray[np.int64]) -> StepResult:
        """A token for each of the hidden states [rows, hidden_size], through chain and sampler."""
        logits = self._process(hidden, slots)
        # A row left with NaN or nothing but -inf yields -1; a mask, too, may leave none.
        guard = self.mask is not None or self.chain.needs_guard()
        prompts = self._prompt_logprobs.finish(slots.tolist())
        sampled = self._sampler(logits, self.share_inputs, slots, guard=guard, also_read=prompts.tensors)
        failures = dict(self.chain.failures)
        for slot in slots[sampled.tokens < 0].tolist():
            failures.setdefault(slot, SlotFailure(self._why_nothing_is_left(slot)))
        self.share_inputs.append_tokens(slots, sampled.tokens)
        logprobs = {int(slots[row]): found for row, found in sampled.logprobs.items()}
        return StepResult(sampled.tokens, failures, logprobs, prompts.unpack(sampled.also))

    def _process(self, hidden: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Hidden states [rows, hidden_size] to logits [rows, vocab_size] after mask, chain and mask again."""

        def raw_logits() -> Tensor:
            logits = self._model.compute_logits(hidden)
            return logits if self.mask is None else self.mask.apply(logits, slots)

        raw = raw_logits()
        self._sampler.capture(raw, self.share_inputs, slots)
        all_greedy = not self.share_inputs["temperature_cpu"][slots].any()
        logits = self.chain.apply(raw, all_greedy=all_greedy, recompute=raw_logits)
        # A processor must not bring back a token that the mask rules out.
        return logits if self.mask is None else self.mask.apply(logits, slots)

    def _why_nothing_is_left(self, slot: int) -> str:
        causes = self._sampler.bans_in(slot)
        if self.chain.needs_guard():
            causes = [f"logits processor {self.chain.last_processor(slot)}", *causes]
        return f"{' and '.join(causes or ['the model'])} left no token that can be sampled"


def _load_model(fd_config: FDConfig, *, show_progress: bool) -> CausalLM:
    config = fd_config.model_config
    cls = model_class(config.hf_config)
    files = read_model_files(Path(config.directory), need_tokenizer=False).weights
    with paddle.no_grad(), open_weights(files, show_progress=show_progress) as weights:
        model = cls(fd_config, weights)
        weights.require_all_taken()
    return model
