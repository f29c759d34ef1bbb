"""The model runner; one step is share_inputs → chain state → forward → logits → chain → sampler → tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeGuard

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM, ComputesAhead, CopiesBlocks, WarmsUp
from fastdeploy_lp.platforms import current_platform, to_device
from fastdeploy_lp.request.trace import MASK, MODEL
from fastdeploy_lp.worker.block_manager import BlockTables
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.drafters.drafting import Drafting
from fastdeploy_lp.worker.drafters.greedy_model import GreedyModel
from fastdeploy_lp.worker.drafters.start import Parts, new_drafting
from fastdeploy_lp.worker.empty_row import Stage, empty_row_failure
from fastdeploy_lp.worker.guided_decoding import GuidedDecoding
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase, StepResult
from fastdeploy_lp.worker.pass_ahead import PassAhead
from fastdeploy_lp.worker.prompt_logprobs import PromptLogprobs
from fastdeploy_lp.worker.prompt_pooling import PooledPrompts, PromptPooling
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.sampler.device_read import read_together
from fastdeploy_lp.worker.sampler.final_rows import FinalRows
from fastdeploy_lp.worker.sampler.shadow_draws import ShadowDraws
from fastdeploy_lp.worker.sequence import ScheduledChunk, Sequence
from fastdeploy_lp.worker.slot_followers import ChainSlots, PromptFollower, SlotArrays, SlotFollowers
from fastdeploy_lp.worker.step_trace import StepTrace, Tracing
from fastdeploy_lp.worker.tensor_parallel.shared_model import open_model
from fastdeploy_lp.worker.verified_rows import NOTHING_AHEAD, DrawnAhead, VerifiedRows

RAW, GUIDED = "raw", "guided_decoding"


class ModelRunner(ModelRunnerBase):
    """Owns the model, its KV cache, `share_inputs`, the mask, the chain, the sampler and tracing.

    `mask` is guided decoding, applied before the chain and again after it.
    """

    _model: CausalLM
    _prompt_logprobs: PromptLogprobs

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain) -> None:
        super().__init__(fd_config, chain)
        self.share_inputs = ShareInputs(fd_config.scheduler_config.max_num_seqs, fd_config.model_config.max_model_len)
        max_blocks = -(-fd_config.model_config.max_model_len // fd_config.cache_config.block_size)
        self._block_tables = BlockTables(fd_config.scheduler_config.max_num_seqs, max_blocks)
        self._sampler = Sampler(fd_config)
        self.mask: LogitsMask = GuidedDecoding(fd_config, self._sampler.ops, self.held)
        self._pooling = PromptPooling()
        self.tracing = Tracing(self._sampler.ops)
        self._drafting: Drafting | None = None
        self._ahead: PassAhead | None = None
        self._verified: VerifiedRows
        # Chunks of the present round that sample.
        self._round: list[ScheduledChunk] = []

    @property
    def followers(self) -> SlotFollowers:
        """Everything that keeps state for the sequence in a slot; the only place that lists it."""
        drafting = () if self._drafting is None else (self._drafting,)
        ahead = () if self._ahead is None else (self._ahead,)
        chain = ChainSlots(self.chain)
        return SlotFollowers(
            every=(SlotArrays(self.share_inputs), self._block_tables, self._pooling, *ahead),
            sampling=(self.mask, chain, self._sampler, self._prompt_logprobs, self.tracing, *drafting),
        )

    def load_model(self, *, show_progress: bool = False) -> None:
        """Loads the checkpoint's weights; the model must use every tensor."""
        self._model = open_model(self.fd_config, show_progress=show_progress)
        self._draft_model = GreedyModel.of(self.fd_config, show_progress=show_progress)
        config = self.fd_config.model_config
        self._prompt_logprobs = PromptLogprobs(
            self._sampler.ops, config.logprobs_mode, config.vocab_size, self._model.compute_logits
        )

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates the model's cache."""
        with paddle.no_grad():
            self._model.initialize_cache(num_blocks)
            if self._draft_model is not None:
                self._draft_model.initialize_cache(num_blocks)

    def block_copier(self) -> BlockCopier | None:
        """See `ModelRunnerBase.block_copier`; a draft model computes its own part of the prefix."""
        return self._model.block_copier() if isinstance(self._model, CopiesBlocks) else None

    def warm_up(self) -> None:
        """Warms up the mask, and the model if it supports that."""
        self.mask.warm_up()
        if isinstance(self._model, WarmsUp):
            with paddle.no_grad():
                self._model.warm_up(self.fd_config.scheduler_config.max_num_seqs)
        settings = self.fd_config.scheduler_config.speculation
        # Drafts depend on the tokens.
        if settings is None and current_platform().runs_ahead and _computes_ahead(self._model):
            self._ahead = PassAhead(self._model, self._block_tables)
        if settings is not None:
            with paddle.no_grad():
                parts = Parts(
                    self.fd_config,
                    settings,
                    self._model,
                    self.mask,
                    self.chain,
                    self._needs_each_token,
                    self._draft_model,
                )
                self._drafting = new_drafting(parts)

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""
        self.followers.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot with its arguments and its processors' state."""
        self.followers.leave(slot)

    def holds(self, slot: int) -> bool:
        """See `ModelRunnerBase.holds`: guided decoding may need time for a mask."""
        return self.mask.holds(slot)

    @property
    def computes_ahead(self) -> bool:
        """See `ModelRunnerBase.computes_ahead`."""
        return self._ahead is not None

    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """See `ModelRunnerBase.execute`."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        slots = self._begin_round(sampling)
        readers: list[PromptFollower] = [each for each in (self._prompt_logprobs, self._pooling) if not each.idle]
        hidden = None if self._ahead is None else self._ahead.take(chunks)
        if hidden is not None and not readers:
            self._count_computed(chunks)
            return self._next_tokens(partial(self._model.compute_logits, hidden), slots, self._pooling.finish(()))
        parts = [self._sequence_chunk(chunk, readers) for chunk in chunks]
        has_drafts = any(chunk.draft for chunk in sampling)
        free = [each for each in sampling if each.draft and not self._needs_each_token(each.sequence.slot)]
        self.mask.look_ahead({chunk.sequence.slot: chunk.draft for chunk in free})
        hidden = self._model.forward(parts)
        if readers or has_drafts:
            hidden = _split_hidden(hidden, chunks, parts, readers)
        self._count_computed(chunks)
        pooled = self._pooling.finish(chunk.sequence.slot for chunk in chunks if chunk.pools)
        if has_drafts:
            self._verified = VerifiedRows(self._model.compute_logits(hidden), sampling)
            ahead = self._draw_drafts(free)
            return self._next_tokens(partial(self._verified.logits, sampling), slots, pooled, ahead)
        if slots.size:
            return self._next_tokens(partial(self._model.compute_logits, hidden), slots, pooled)
        read = read_together(pooled.tensors) if pooled.tensors else []
        return StepResult(slots, {}, pooled=pooled.unpack(iter(read)))

    def _count_computed(self, chunks: list[ScheduledChunk]) -> None:
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:
        """See `ModelRunnerBase.drafts`."""
        return {} if self._drafting is None else self._drafting.drafts(sequences, tokens, room)

    def verify(self, chunks: list[ScheduledChunk]) -> StepResult:
        """See `ModelRunnerBase.verify`."""
        began = time.perf_counter()
        slots = self._begin_round(chunks)
        result = self._next_tokens(partial(self._verified.logits, chunks), slots, self._pooling.finish(()))
        if self._drafting is not None:
            self._drafting.costs.round_took(time.perf_counter() - began)
        return result

    def _needs_each_token(self, slot: int) -> bool:
        return self.followers.needs_each_token(slot)

    def _draw_drafts(self, chunks: list[ScheduledChunk]) -> DrawnAhead:
        """Draws the tokens of these chunks' drafts."""
        began = time.perf_counter()
        drawn = self._verified.draw_ahead(chunks, self.mask.known_ahead(), self._draw_ahead)
        if chunks and self._drafting is not None:
            self._drafting.costs.draw_took(time.perf_counter() - began)
        return drawn

    def _draw_ahead(self, logits: Tensor, slots: NDArray[np.int64], places: NDArray[np.int64]) -> Tensor:
        self.mask.apply_ahead(logits, slots)
        return self._sampler.draw_ahead(logits, self.share_inputs, slots, places, guard=self.mask.active)

    def _begin_round(self, chunks: list[ScheduledChunk]) -> NDArray[np.int64]:
        """Returns the slots of the chunks, each of which samples a token; int64 [rows], ascending."""
        self._round = chunks
        slots = np.array([chunk.sequence.slot for chunk in chunks], np.int64)
        self.share_inputs.set_active(slots)
        if slots.size:
            self.mask.begin(slots)
            self.chain.update_state(self.share_inputs)
        return slots

    def _sequence_chunk(self, chunk: ScheduledChunk, readers: list[PromptFollower]) -> SequenceChunk:
        sequence, start = chunk.sequence, chunk.start
        every_row = bool(readers) and any(each.wants_every_row(sequence.slot) for each in readers)
        num_outputs = chunk.num_tokens if every_row else int(chunk.samples or chunk.pools)
        return SequenceChunk(
            token_ids=np.array([*sequence.token_ids_between(start, start + chunk.num_tokens), *chunk.draft]),
            start=start,
            block_table=self._block_tables.row(sequence),
            num_outputs=num_outputs + len(chunk.draft),
        )

    def _next_tokens(
        self,
        compute: Callable[[], Tensor],
        slots: NDArray[np.int64],
        pooled: PooledPrompts,
        ahead: DrawnAhead = NOTHING_AHEAD,
    ) -> StepResult:
        """Returns a token for each row of the model's logits [rows, vocab_size], through chain and sampler.

        compute: returns these logits, a new tensor at each call. ahead: tokens that may follow.
        """
        trace = self.tracing.begin(slots)
        logits = self._process(compute, slots, trace)
        final = self._final_rows(trace)
        shadows = self._shadow_draws(logits, slots)
        # A row with NaN or only -inf yields -1; a mask may also leave no token.
        guard = self.mask.active or self.chain.needs_guard()
        prompts = self._prompt_logprobs.finish(slots.tolist())
        sampled = self._sampler(
            logits,
            self.share_inputs,
            slots,
            guard=guard,
            final=final,
            also_read=[*ahead.tensors, *prompts.tensors, *pooled.tensors],
            watchers=[watcher for watcher in (trace, shadows) if watcher is not None],
            meanwhile=self._compute_ahead if any(chunk.goes_ahead for chunk in self._round) else None,
        )
        read = iter(sampled.also)
        further = ahead.unpack(read)
        self.mask.accept(slots, sampled.tokens, further)
        impossible = {slot: SlotFailure(reason, by_request=True) for slot, reason in self.mask.failures.items()}
        failures = {**impossible, **self.chain.failures}
        for row in np.flatnonzero(sampled.tokens < 0).tolist():
            # After a sequence's last token, nothing need be left.
            slot = int(slots[row])
            if self._round[row].sequence.finish_reason is None and slot not in self.mask.overrun:
                failures.setdefault(slot, self._nothing_is_left(slot, compute, slots, final))
        self._record(slots, sampled.tokens, further)
        return StepResult(
            sampled.tokens,
            failures,
            logprobs={int(slots[row]): found for row, found in sampled.logprobs.items()},
            prompt_logprobs=prompts.unpack(read),
            pooled=pooled.unpack(read),
            completed=frozenset(self.mask.completed),
            overrun=frozenset(self.mask.overrun),
            traces={} if trace is None else trace.stages,
            shadows={} if shadows is None else shadows.tokens,
            actions=self.chain.take_actions(failures),
            further=further,
        )

    def _compute_ahead(self, tokens: Tensor) -> None:
        if self._ahead is not None:
            self._ahead.begin(self._round, tokens)

    def _record(self, slots: NDArray[np.int64], tokens: NDArray[np.int64], further: Mapping[int, list[int]]) -> None:
        if not further:
            self.share_inputs.append_tokens(slots, tokens)
            return
        runs = [[token, *further.get(slot, ())] for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True)]
        self.share_inputs.append_tokens(slots, np.concatenate(runs), np.array([len(run) for run in runs]))

    def _process(self, compute: Callable[[], Tensor], slots: NDArray[np.int64], trace: StepTrace | None) -> Tensor:
        """Returns the logits [rows, vocab_size] to draw from: the model's through mask, chain, mask again."""

        def raw_logits() -> Tensor:
            return self.mask.apply(compute(), slots)

        raw = raw_logits() if trace is None else self._traced_raw_logits(compute, slots, trace)
        self._sampler.capture(raw, slots)
        all_greedy = self._sampler.takes_the_most_likely(self.share_inputs, slots)
        logits = self.chain.apply(raw, all_greedy=all_greedy, recompute=raw_logits, trace=trace)
        if trace is not None:
            trace.start_clock()
        # A processor must not bring back a token that the mask rules out.
        if self.chain.ran():
            logits = self.mask.apply(logits, slots)
        if trace is not None:
            trace.keep(GUIDED, MASK, logits, [slot for slot in self._masked(trace) if trace.was_processed(slot)])
        return logits

    def _traced_raw_logits(self, compute: Callable[[], Tensor], slots: NDArray[np.int64], trace: StepTrace) -> Tensor:
        """Computes the masked logits in two stages, each of which is traced."""
        trace.start_clock()
        logits = compute()
        trace.keep(RAW, MODEL, logits)
        logits = self.mask.apply(logits, slots)
        trace.keep(GUIDED, MASK, logits, self._masked(trace))
        return logits

    def _masked(self, trace: StepTrace) -> list[int]:
        return [slot for slot in trace.slots if self.mask.bans_in(slot)]

    def _final_rows(self, trace: StepTrace | None) -> FinalRows | None:
        """Returns the rows on which processors run after the filters; None without any."""
        if not self.chain.final.is_used:
            return None
        skips = self.fd_config.structured_outputs_config.on_error == "skip"
        return FinalRows(self._sampler.ops, self.chain.final, trace, skips_faults=skips)

    def _shadow_draws(self, logits: Tensor, slots: NDArray[np.int64]) -> ShadowDraws | None:
        """Runs the shadow processors on copies of the chain's logits; returns None without any."""
        if not self.chain.shadows.has_work:
            return None
        all_greedy = self._sampler.takes_the_most_likely(self.share_inputs, slots)
        step = self.chain.shadows.apply(logits, slots, all_greedy=all_greedy)
        for result in step.results:
            if result.logits is not None:
                self.mask.apply_to_copies(result.logits, result.rows)
        return ShadowDraws(self._sampler.ops, self.chain.shadows, step, slots, self.chain.final.slots)

    def _nothing_is_left(
        self, slot: int, compute: Callable[[], Tensor], slots: NDArray[np.int64], final: FinalRows | None
    ) -> SlotFailure:
        """Returns a failure naming the stages that left the slot's row without a token; reruns them."""
        ran = self.chain.ran_on(slot)
        edited = [] if final is None else self.chain.final.ran_on(slot)
        masks = [Stage(label, lambda logits: self.mask.apply(logits, slots), True) for label in self.mask.bans_in(slot)]
        bans = self._sampler.bans_in(slot)
        stages = [
            *masks,
            *(self._stage_of(entry, slot) for entry in ran),
            # After the chain, the mask rules out again what a processor brought back.
            *masks,
            Stage(" and ".join(bans), lambda logits: self._sampler.edit(logits, slots), True),
        ]
        if final is not None and edited:
            edits = [Stage(_label(entry), partial(final.edit_again, entry)) for entry in edited]
            stages += [Stage("the filters", final.filter_again, True), *edits]
        # If the failure does not recur, the last processor is the most likely cause.
        likely = _label([*ran, *edited][-1]) if ran or edited else None
        row = int(np.searchsorted(slots, slot))
        return empty_row_failure(stages, compute, row, likely)

    def _stage_of(self, entry: ChainEntry, slot: int) -> Stage:
        by_request = entry.declared.source == "builtin" and slot in entry.view.using
        return Stage(_label(entry), lambda logits: self.chain.apply_again(entry, slot, logits), by_request)


def _label(entry: ChainEntry) -> str:
    return f"logits processor {entry.name}"


def _computes_ahead(model: CausalLM) -> TypeGuard[ComputesAhead]:
    return isinstance(model, ComputesAhead) and model.computes_ahead


def _split_hidden(
    hidden: Tensor, chunks: list[ScheduledChunk], parts: list[SequenceChunk], readers: list[PromptFollower]
) -> Tensor:
    """Passes rows of `hidden` to their readers; returns the hidden states [rows, hidden_size] to sample from."""
    ends = np.cumsum([part.num_outputs for part in parts])
    for chunk, part, end in zip(chunks, parts, ends.tolist(), strict=True):
        slot = chunk.sequence.slot
        for reader in readers:
            if part.num_outputs and reader.wants(slot):
                reader.take(slot, hidden[end - part.num_outputs : end])
    sampling = [
        np.arange(end - 1 - len(chunk.draft), end) for chunk, end in zip(chunks, ends, strict=True) if chunk.samples
    ]
    if not sampling or sum(map(len, sampling)) == len(hidden):
        return hidden
    return paddle.gather(hidden, to_device(np.concatenate(sampling)))
