"""The model runner; one step is share_inputs → chain state → forward → logits → chain → sampler → tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeGuard

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM, ComputesAhead, CopiesBlocks, WarmsUp
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.request.trace import MASK, MODEL
from fastdeploy_lp.worker.block_manager import BlockTables
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.drafters.drafting import Drafting
from fastdeploy_lp.worker.drafters.greedy_model import GreedyModel
from fastdeploy_lp.worker.drafters.start import Parts, new_drafting
from fastdeploy_lp.worker.empty_row import RowStages
from fastdeploy_lp.worker.guided_decoding import GuidedDecoding
from fastdeploy_lp.worker.logits_mask import LogitsMask
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase, StepResult
from fastdeploy_lp.worker.pass_ahead import PassAhead
from fastdeploy_lp.worker.prompt_logprobs import PromptLogprobs
from fastdeploy_lp.worker.prompt_pooling import PooledPrompts, PromptPooling
from fastdeploy_lp.worker.sampler import SampledRows, Sampler
from fastdeploy_lp.worker.sampler.device_read import read_together
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher
from fastdeploy_lp.worker.sampler.final_rows import FinalRows
from fastdeploy_lp.worker.sampler.shadow_draws import ShadowDraws
from fastdeploy_lp.worker.sequence import ScheduledChunk, Sequence
from fastdeploy_lp.worker.slot_followers import (
    ChainSlots,
    PromptFollower,
    SamplingFollower,
    SlotArrays,
    SlotFollower,
    SlotFollowers,
    split_hidden,
)
from fastdeploy_lp.worker.step_trace import StepTrace, Tracing
from fastdeploy_lp.worker.tensor_parallel.shared_model import open_model
from fastdeploy_lp.worker.verified_rows import DrawnAhead, VerifiedRows

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
        self._arrays, self._chain_slots = SlotArrays(self.share_inputs), ChainSlots(chain)
        self._followers = SlotFollowers()
        self.tracing = Tracing(self._sampler.ops)
        self._drafting: Drafting | None = None
        self._ahead: PassAhead | None = None
        self._verified: VerifiedRows
        # Chunks of the present round that sample.
        self._round: list[ScheduledChunk] = []

    def followers_of(self, sequence: Sequence) -> list[SlotFollower]:
        """Returns what keeps state for this sequence in its slot, besides `sampling_followers_of`; listed only here."""
        found: list[SlotFollower] = [self._arrays, self._block_tables]
        if self._ahead is not None:
            found.append(self._ahead)
        if sequence.pooling is not None:
            found.append(self._pooling)
        return found

    def sampling_followers_of(self, sequence: Sequence) -> list[SamplingFollower]:
        """Returns the followers of this sequence that take part in sampling, of which a pooled prompt has none."""
        if sequence.pooling is not None:
            return []
        found: list[SamplingFollower] = [self._chain_slots, self._sampler]
        if sequence.grammar is not None or not self.mask.only_grammars:
            found.insert(0, self.mask)
        if sequence.needs_prompt_logprobs:
            found.append(self._prompt_logprobs)
        if sequence.params.trace is not None:
            found.append(self.tracing)
        if self._drafting is not None:
            found.append(self._drafting)
        return found

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
        self._followers.enter(sequence, self.followers_of(sequence), self.sampling_followers_of(sequence))

    def leave(self, slot: int) -> None:
        """Clears a slot with its arguments and its processors' state."""
        self._followers.leave(slot)

    def holds(self, slot: int) -> bool:
        """See `ModelRunnerBase.holds`: guided decoding may need time for a mask."""
        return self._followers.follows(self.mask, slot) and self.mask.holds(slot)

    @property
    def _masks(self) -> bool:
        """True if the mask follows any sequence in a slot."""
        return self._followers.follows_any(self.mask)

    def _readers(self) -> list[PromptFollower]:
        """Returns the followers that read hidden states now."""
        parts = (self._prompt_logprobs, self._pooling)
        return [each for each in parts if self._followers.follows_any(each) and not each.idle]

    @property
    def computes_ahead(self) -> bool:
        """See `ModelRunnerBase.computes_ahead`."""
        return self._ahead is not None

    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """See `ModelRunnerBase.execute`."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        slots = self._begin_round(sampling)
        readers = self._readers()
        hidden = None if self._ahead is None else self._ahead.take(chunks)
        if hidden is not None and not readers:
            self._count_computed(chunks)
            return self._next_tokens(partial(self._model.compute_logits, hidden), slots)
        parts = [self._sequence_chunk(chunk, readers) for chunk in chunks]
        has_drafts = any(chunk.draft for chunk in sampling)
        free = self._drawn_at_once(sampling) if has_drafts else []
        if has_drafts and self._masks:
            self.mask.look_ahead({chunk.sequence.slot: chunk.draft for chunk in free})
        hidden = self._model.forward(parts)
        if readers:
            hidden = split_hidden(hidden, chunks, parts, readers)
        self._count_computed(chunks)
        ends = [chunk.sequence.slot for chunk in chunks if chunk.pools]
        pooled = self._pooling.finish(ends) if ends else None
        if has_drafts:
            self._verified = VerifiedRows(self._model.compute_logits(hidden), sampling)
            ahead = self._draw_drafts(free)
            return self._next_tokens(partial(self._verified.logits, sampling), slots, pooled, ahead)
        if slots.size:
            return self._next_tokens(partial(self._model.compute_logits, hidden), slots, pooled)
        if pooled is None:
            return StepResult(slots, {})
        return StepResult(slots, {}, pooled=pooled.unpack(iter(read_together(pooled.tensors))))

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
        result = self._next_tokens(partial(self._verified.logits, chunks), slots)
        if self._drafting is not None:
            self._drafting.costs.round_took(time.perf_counter() - began)
        return result

    def _needs_each_token(self, slot: int) -> bool:
        return self._followers.needs_each_token(slot)

    def _drawn_at_once(self, sampling: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Returns the chunks all of whose tokens are drawn at once; without a draft only if they are all the chunks."""
        free = [chunk for chunk in sampling if not self._needs_each_token(chunk.sequence.slot)]
        return free if len(free) == len(sampling) else [chunk for chunk in free if chunk.draft]

    def _draw_drafts(self, chunks: list[ScheduledChunk]) -> DrawnAhead:
        """Draws the tokens of these chunks' drafts."""
        began = time.perf_counter()
        known = self.mask.known_ahead() if self._masks else {}
        drawn = self._verified.draw_ahead(chunks, known, self._draw_ahead)
        if chunks and self._drafting is not None:
            self._drafting.costs.draw_took(time.perf_counter() - began)
        return drawn

    def _draw_ahead(
        self, logits: Tensor, slots: NDArray[np.int64], places: NDArray[np.int64]
    ) -> Tensor | NDArray[np.int64]:
        masks = self._masks
        if masks:
            self.mask.apply_ahead(logits, slots)
        guard = masks and self.mask.active
        return self._sampler.draw_ahead(logits, self.share_inputs, slots, places, guard=guard)

    def _begin_round(self, chunks: list[ScheduledChunk]) -> NDArray[np.int64]:
        """Returns the slots of the chunks, each of which samples a token; int64 [rows], ascending."""
        self._round = chunks
        slots = np.array([chunk.sequence.slot for chunk in chunks], np.int64)
        self.share_inputs.set_active(slots)
        if slots.size:
            if self._masks:
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
        pooled: PooledPrompts | None = None,
        ahead: DrawnAhead | None = None,
    ) -> StepResult:
        """Returns a token for each row of the model's logits [rows, vocab_size], through chain and sampler.

        compute: returns these logits, a new tensor at each call. ahead: tokens that were drawn, and may follow.
        """
        masks = self._masks
        trace = self.tracing.begin(slots) if self._followers.follows_any(self.tracing) else None
        reads_prompts = self._followers.follows_any(self._prompt_logprobs)
        prompts = self._prompt_logprobs.finish(slots.tolist()) if reads_prompts else None
        also_read = [tensor for each in (ahead, prompts, pooled) if each is not None for tensor in each.tensors]
        final = shadows = None
        if ahead is not None and ahead.has_all:
            read = iter(read_together(also_read))
            runs = ahead.unpack(read)
            sampled = SampledRows(np.array([run[0] for run in runs.values()], np.int64))
        else:
            logits = self._process(compute, slots, trace)
            final = self._final_rows(trace)
            shadows = self._shadow_draws(logits, slots)
            watchers: list[DrawWatcher] = [watcher for watcher in (trace, shadows) if watcher is not None]
            sampled = self._draw(logits, slots, also_read, final, watchers)
            read = iter(sampled.also)
            runs = {} if ahead is None else ahead.unpack(read)
        further = {slot: run[1:] for slot, run in runs.items() if len(run) > 1}
        failures = dict(self.chain.failures)
        completed = undecided = overrun = frozenset[int]()
        if masks:
            self.mask.accept(slots, sampled.tokens, further)
            completed, undecided = frozenset(self.mask.completed), frozenset(self.mask.undecided)
            overrun = frozenset(self.mask.overrun)
            impossible = {slot: SlotFailure(reason, by_request=True) for slot, reason in self.mask.failures.items()}
            over = self._over(overrun)
            failures = impossible | {slot: failure for slot, failure in failures.items() if slot not in over}
        for row in np.flatnonzero(sampled.tokens < 0).tolist():
            # After a sequence's last token, nothing need be left.
            slot = int(slots[row])
            if self._round[row].sequence.finish_reason is None and slot not in overrun:
                stages = RowStages(slot, slots, self.mask, self.chain, self._sampler, final)
                failures.setdefault(slot, stages.failure(compute))
        self._record(slots, sampled.tokens, further)
        return StepResult(
            sampled.tokens,
            failures,
            logprobs={int(slots[row]): found for row, found in sampled.logprobs.items()},
            prompt_logprobs={} if prompts is None else prompts.unpack(read),
            pooled={} if pooled is None else pooled.unpack(read),
            completed=completed,
            undecided=undecided,
            overrun=overrun,
            traces={} if trace is None else trace.stages,
            shadows={} if shadows is None else shadows.tokens,
            actions=self.chain.take_actions(failures),
            further=further,
        )

    def _over(self, overrun: Collection[int]) -> set[int]:
        """Returns the slots whose output had ended before this step, unless processors were still to see its end."""
        sequences = [chunk.sequence for chunk in self._round if not chunk.sequence.max_rewind]
        return {each.slot for each in sequences if each.slot in overrun or each.finish_reason is not None}

    def _draw(
        self,
        logits: Tensor,
        slots: NDArray[np.int64],
        also_read: list[Tensor],
        final: FinalRows | None,
        watchers: list[DrawWatcher],
    ) -> SampledRows:
        return self._sampler(
            logits,
            self.share_inputs,
            slots,
            # A row with NaN or only -inf yields -1; a mask may also leave no token.
            guard=(self._masks and self.mask.active) or self.chain.needs_guard(),
            final=final,
            also_read=also_read,
            watchers=watchers,
            meanwhile=self._compute_ahead if any(chunk.goes_ahead for chunk in self._round) else None,
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
            return self._masked(compute(), slots)

        raw = raw_logits() if trace is None else self._traced_raw_logits(compute, slots, trace)
        self._sampler.capture(raw, slots)
        all_greedy = self._sampler.takes_the_most_likely(self.share_inputs, slots)
        logits = self.chain.apply(raw, all_greedy=all_greedy, recompute=raw_logits, trace=trace)
        if trace is not None:
            trace.start_clock()
        # A processor must not bring back a token that the mask rules out.
        if self.chain.ran():
            logits = self._masked(logits, slots)
        if trace is not None:
            processed = [slot for slot in self._traced_with_mask(trace) if trace.was_processed(slot)]
            trace.keep(GUIDED, MASK, logits, processed)
        return logits

    def _traced_raw_logits(self, compute: Callable[[], Tensor], slots: NDArray[np.int64], trace: StepTrace) -> Tensor:
        """Computes the masked logits in two stages, each of which is traced."""
        trace.start_clock()
        logits = compute()
        trace.keep(RAW, MODEL, logits)
        logits = self._masked(logits, slots)
        trace.keep(GUIDED, MASK, logits, self._traced_with_mask(trace))
        return logits

    def _masked(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        return self.mask.apply(logits, slots) if self._masks else logits

    def _traced_with_mask(self, trace: StepTrace) -> list[int]:
        return [slot for slot in trace.slots if self.mask.bans_in(slot)]

    def _final_rows(self, trace: StepTrace | None) -> FinalRows | None:
        """Returns the rows on which processors run after the filters; None without any."""
        if not self.chain.uses_final:
            return None
        skips = self.fd_config.structured_outputs_config.on_error == "skip"
        return FinalRows(self._sampler.ops, self.chain.final, trace, skips_faults=skips)

    def _shadow_draws(self, logits: Tensor, slots: NDArray[np.int64]) -> ShadowDraws | None:
        """Runs the shadow processors on copies of the chain's logits; returns None without any."""
        if not self.chain.uses_shadows:
            return None
        all_greedy = self._sampler.takes_the_most_likely(self.share_inputs, slots)
        step = self.chain.shadows.apply(logits, slots, all_greedy=all_greedy)
        for result in step.results:
            if result.logits is not None and self._masks:
                self.mask.apply_to_copies(result.logits, result.rows)
        return ShadowDraws(self._sampler.ops, self.chain.shadows, step, slots, self.chain.final.slots)


def _computes_ahead(model: CausalLM) -> TypeGuard[ComputesAhead]:
    return isinstance(model, ComputesAhead) and model.computes_ahead
