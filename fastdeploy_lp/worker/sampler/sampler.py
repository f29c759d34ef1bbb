"""Penalties and bans, the draw, logprobs, and the step's single read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowOps
from fastdeploy_lp.model_executor.ops.row_selection import row_ops
from fastdeploy_lp.platforms import current_platform, to_device
from fastdeploy_lp.worker.sampler.chain_tail import ChainTail
from fastdeploy_lp.worker.sampler.device_read import begin_read
from fastdeploy_lp.worker.sampler.draw_parameters import DrawParameters, RequestParameters
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher
from fastdeploy_lp.worker.sampler.final_rows import FinalRows
from fastdeploy_lp.worker.sampler.logprobs import LogprobsCapture
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence


@dataclass(frozen=True)
class SampledRows:
    """Host copies: tokens int64 [rows], -1 where no token could be sampled, and requested logprobs by row.

    also: host copies of the `also_read` tensors.
    """

    tokens: Int64s
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    also: list[NDArray[Any]] = field(default_factory=list)


class Sampler:
    """Sampler: greedy at temperature 0; otherwise temperature, min-p, top-k, top-p and a seeded draw.

    A row's token depends only on its logits, parameters, tokens, seed and number of earlier draws, never on other rows
    or its slot. Requests enter and leave slots; in a step, `capture` takes the raw logits before `__call__` samples.
    """

    def __init__(self, fd_config: FDConfig, ops: RowOps | None = None) -> None:
        self.ops = row_ops() if ops is None else ops
        self._tail = ChainTail(fd_config, self.ops)
        self._logprobs = LogprobsCapture(self.ops, fd_config.model_config.logprobs_mode)
        self._parameters = DrawParameters()

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence in its slot."""
        self._parameters.forget()
        self._tail.enter(sequence)
        self._logprobs.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._parameters.forget()
        self._tail.leave(slot)
        self._logprobs.leave(slot)

    def needs_each_token(self, slot: int) -> bool:
        """Returns True if the slot's request has penalties, bans or logprobs."""
        return self._tail.works_on(slot) or self._logprobs.works_on(slot)

    def draw_ahead(
        self, logits: Tensor, share_inputs: Mapping[str, Any], slots: Int64s, places: Int64s, *, guard: bool
    ) -> Tensor:
        """Returns a token int64 [rows] for each row of logits [rows, vocab_size], on the device.

        Row r is for the token that is `places[r]` after the next one of slot `slots[r]`, which must not need each
        token. guard: a row may be without a token; it yields -1.
        """
        draws = RequestParameters.of(share_inputs, slots).draws(share_inputs["step_idx"][slots, 0] + places)
        return self.ops.draw(logits, draws, guard=guard)

    def capture(self, logits: Tensor, slots: Int64s) -> None:
        """Keeps the rows of the raw logits [rows, vocab_size] that logprobs need; row r is slot `slots[r]`."""
        self._logprobs.begin(logits, slots)

    def takes_the_most_likely(self, share_inputs: Mapping[str, Any], slots: Int64s) -> bool:
        """Returns True if only the most likely token of each row matters; call it after `capture`.

        Penalties and bans need the other logits, and so do log probabilities of the processed logits.
        """
        if not self._parameters.of(share_inputs, slots).all_greedy:
            return False
        return not (self._tail.works_on_any(slots) or self._logprobs.shows_what_is_drawn_from)

    def __call__(
        self,
        logits: Tensor,
        share_inputs: Mapping[str, Any],
        slots: Int64s,
        *,
        guard: bool = False,
        final: FinalRows | None = None,
        also_read: Sequence[Tensor] = (),
        watchers: Sequence[DrawWatcher] = (),
        meanwhile: Callable[[Tensor], None] | None = None,
    ) -> SampledRows:
        """Samples from logits [rows, vocab_size], which penalties and bans change in place.

        guard: a processor may have left a row without a usable logit. final: the rows on which processors run after the
        filters. also_read: tensors to copy to the host in the same read. watchers: observers, whose tensors are read
        along. meanwhile: takes the tokens on the device, int64 [rows], and queues work that the read does not wait for.
        """
        self._tail.apply(logits, slots)
        if final is not None:
            watchers = [*watchers, final]
        for watcher in watchers:
            watcher.edited(logits, slots, self._tail)
        draws = self._parameters.draws(share_inputs, slots)
        guard = guard or self._tail.any_bans
        tokens_alone = not (also_read or meanwhile or self._logprobs.asked_for) and current_platform().computes_on_host
        if tokens_alone and not watchers:
            return SampledRows(self.ops.draw_to_host(logits, draws, guard=guard))
        if final is None:
            tokens = self.ops.draw(logits, draws, guard=guard)
        else:
            draws, drawn = final.draw(logits, draws, slots, guard=guard)
            if tokens_alone and isinstance(drawn, np.ndarray) and len(watchers) == 1:
                return SampledRows(drawn)
            tokens = to_device(drawn) if isinstance(drawn, np.ndarray) else drawn
        if watchers:
            return self._watched(logits, draws, tokens, also_read, watchers, meanwhile)
        return self._read(logits, draws, tokens, also_read, meanwhile)

    def _watched(
        self,
        logits: Tensor,
        draws: Draws,
        tokens: Tensor,
        also_read: Sequence[Tensor],
        watchers: Sequence[DrawWatcher],
        meanwhile: Callable[[Tensor], None] | None,
    ) -> SampledRows:
        wanted = [watcher.drawn(logits, draws, tokens) for watcher in watchers]
        more = [*also_read, *(tensor for each in wanted for tensor in each)]
        sampled = self._read(logits, draws, tokens, more, meanwhile)
        read = iter(sampled.also[len(also_read) :])
        for watcher in watchers:
            watcher.take(sampled.tokens, read)
        return SampledRows(sampled.tokens, sampled.logprobs, sampled.also[: len(also_read)])

    def _read(
        self,
        logits: Tensor,
        draws: Draws,
        tokens: Tensor,
        also_read: Sequence[Tensor],
        meanwhile: Callable[[Tensor], None] | None,
    ) -> SampledRows:
        found = self._logprobs.compute(logits, draws, tokens) if self._logprobs.asked_for else None
        listed = [] if found is None else [found.values, found.tokens, found.ranks]
        read = begin_read([tokens, *listed, *also_read])
        if meanwhile is not None:
            meanwhile(tokens)
        host_tokens, *rest = read()
        logprobs = {} if found is None else self._logprobs.unpack(*rest[: len(listed)])
        return SampledRows(host_tokens.astype(np.int64), logprobs, rest[len(listed) :])

    def edit(self, logits: Tensor, slots: Int64s) -> Tensor:
        """Applies penalties and bans to logits [rows, vocab_size] in place and returns them; repeatable in a step."""
        self._tail.apply(logits, slots)
        return logits

    def bans_in(self, slot: int) -> list[str]:
        """The fields by which the slot's request has ruled tokens out."""
        return self._tail.bans_in(slot)
