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
from fastdeploy_lp.worker.prompt_logprobs import PromptLogprobs
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.share_inputs import ShareInputs


class LogitsMask(Protocol):
    """Rules tokens out, as guided decoding does; applied before the chain and again behind it."""

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """The logits [rows, vocab_size] with ruled-out tokens at -inf; row r is slot `slots[r]`."""


@dataclass(frozen=True)
class StepResult:
    """One token for each row [rows], which slots' requests have to end instead, and by slot the logprobs asked for.

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
        self.chain.leave(slot)
        self._sampler.leave(slot)
        self._prompt_logprobs.leave(slot)

    def execute(self, sequences: list[Sequence]) -> StepResult:
        """Sample one token for each sequence, given in ascending slot order."""
        slots = np.array([sequence.slot for sequence in sequences])
        self.share_inputs.set_active(slots)
        self.chain.update_state(self.share_inputs)
        chunks = [_chunk(sequence, whole=self._prompt_logprobs.wants(sequence.slot)) for sequence in sequences]
        hidden = self._split_hidden(self._model.forward(chunks), chunks, slots)
        logits = self._process(hidden, slots)
        # A row left with NaN or nothing but -inf yields -1; a mask, too, may leave none.
        guard = self.mask is not None or self.chain.needs_guard()
        prompts = self._prompt_logprobs.finish(slots.tolist())
        sampled = self._sampler(logits, self.share_inputs, slots, guard=guard, also_read=prompts.tensors)
        failures = dict(self.chain.failures)
        for slot in slots[sampled.tokens < 0].tolist():
            failures.setdefault(slot, SlotFailure(self._why_nothing_is_left(slot)))
        self.share_inputs.append_tokens(slots, sampled.tokens)
        for sequence in sequences:
            sequence.num_computed = sequence.num_tokens
        logprobs = {int(slots[row]): found for row, found in sampled.logprobs.items()}
        return StepResult(sampled.tokens, failures, logprobs, prompts.unpack(sampled.also))

    def _split_hidden(self, hidden: Tensor, chunks: list[SequenceChunk], slots: NDArray[np.int64]) -> Tensor:
        """Hand whole chunks on to prompt logprobs; gives the hidden states [chunks, hidden_size] of the last tokens."""
        wanting = [row for row, slot in enumerate(slots.tolist()) if self._prompt_logprobs.wants(slot)]
        if not wanting:
            return hidden
        ends = np.cumsum([chunk.num_outputs for chunk in chunks])
        for row in wanting:
            self._prompt_logprobs.take(int(slots[row]), hidden[ends[row] - chunks[row].num_outputs : ends[row]])
        return paddle.gather(hidden, paddle.to_tensor(ends - 1))

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


def _chunk(sequence: Sequence, *, whole: bool) -> SequenceChunk:
    return SequenceChunk(
        token_ids=np.array(sequence.uncomputed_token_ids),
        start=sequence.num_computed,
        block_table=np.array(sequence.block_table),
        num_outputs=len(sequence.uncomputed_token_ids) if whole else 1,
    )


def _load_model(fd_config: FDConfig, *, show_progress: bool) -> CausalLM:
    config = fd_config.model_config
    cls = model_class(config.hf_config)
    files = read_model_files(Path(config.directory), need_tokenizer=False).weights
    with paddle.no_grad(), open_weights(files, show_progress=show_progress) as weights:
        model = cls(fd_config, weights)
        weights.require_all_taken()
    return model
