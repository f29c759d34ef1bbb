"""Penalties and bans, the draw, logprobs, and the step's single read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.builtin.bans import (
    AllowedTokensLogitsProcessor,
    BadWordsLogitsProcessor,
    MinTokensLogitsProcessor,
)
from fastdeploy_lp.logits_processor.builtin.penalties import NO_PENALTIES, TokenPenaltyProcessor
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform
from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Floats, Int64s, RowEdits, RowOps
from fastdeploy_lp.model_executor.ops.row_selection import row_ops
from fastdeploy_lp.platforms import current_platform, to_device
from fastdeploy_lp.worker.sampler.device_read import begin_read
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher
from fastdeploy_lp.worker.sampler.final_rows import FinalRows
from fastdeploy_lp.worker.sampler.logprobs import LogprobsCapture
from fastdeploy_lp.worker.sampler.rewind_bans import REWIND_BAN, RewindBans
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

# With their arguments, in the order in which they edit a row.
PROCESSORS: dict[type[SlotProcessor[Any]], tuple[str, ...]] = {
    AllowedTokensLogitsProcessor: ("allowed_token_ids",),
    TokenPenaltyProcessor: tuple(NO_PENALTIES),
    BadWordsLogitsProcessor: ("bad_words_token_ids",),
    MinTokensLogitsProcessor: ("min_tokens",),
    RewindBans: (REWIND_BAN,),
}
# Values that change nothing.
OFF: dict[str, Any] = {
    **NO_PENALTIES,
    "allowed_token_ids": None,
    "bad_words_token_ids": [],
    "min_tokens": 0,
    REWIND_BAN: frozenset(),
}
# Names of what rules tokens out, by the argument of its processor: request fields, and rewinds.
BANS = {
    "allowed_token_ids": "allowed_token_ids",
    "bad_words_token_ids": "bad_words",
    "min_tokens": "min_tokens",
    REWIND_BAN: "the ban of a rewind",
}


# Tokens whose numbers are computed together: for few rows, one token's take as long.
NUMBERS_AHEAD = 32


@dataclass
class _TailProcessor:
    """A processor with the slots whose requests use it, and its calls without an update that are left."""

    processor: SlotProcessor[Any]
    users: set[int] = field(default_factory=set)
    rest: int = 0

    def update(self, share_inputs: Mapping[str, Any], *, same_rows: bool) -> None:
        """Lets the processor read the slots unless it is at rest."""
        if same_rows and self.rest > 0:
            self.rest -= 1
        else:
            self.processor.update_state(share_inputs)
            self.rest = self.processor.steps_at_rest


class ChainTail:
    """The chain's fixed tail: runs the builtins of `PROCESSORS` with arguments from requests' own fields.

    Requests enter and leave slots; those without such fields have no state and cost nothing.
    """

    def __init__(self, fd_config: FDConfig, edits: RowEdits) -> None:
        slots = fd_config.scheduler_config.max_num_seqs
        self._processors = [_TailProcessor(processor(fd_config, edits)) for processor in PROCESSORS]
        self._args: dict[int, Mapping[str, Any]] = {}
        self._banning: dict[int, list[str]] = {}
        self._stop_flags = np.ones((slots, 1), bool)
        # Of the last call, if no request has entered or left since.
        self._flags = b""
        self._versions = np.zeros(slots, np.int64)
        self._lists: dict[str, list[Any]] = {
            name: [None] * slots
            for name in ("logits_processors_args", "prompt_token_ids", "output_token_ids", "sampling_params")
        }
        # The slot arrays as these processors see them.
        self._share_inputs = {
            **self._lists,
            "stop_flags": self._stop_flags,
            "args_versions": self._versions,
            "using_slots": self._args,
        }

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence in its slot, with or without output."""
        args = _args_of(sequence)
        if not args:
            return
        slot = sequence.slot
        self._args[slot] = args
        if banning := [field for name, field in BANS.items() if name in args]:
            self._banning[slot] = banning
        for each, names in zip(self._processors, PROCESSORS.values(), strict=True):
            if not args.keys().isdisjoint(names):
                each.users.add(slot)
        self._write(slot, args, sequence.prompt_token_ids, sequence.output_token_ids, sequence.params)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        if self._args.pop(slot, None) is not None:
            self._banning.pop(slot, None)
            for each in self._processors:
                each.users.discard(slot)
            self._write(slot, None, None, None, None)

    def _write(self, slot: int, *values: Any) -> None:
        for slot_list, value in zip(self._lists.values(), values, strict=True):
            slot_list[slot] = value
        self._versions[slot] += 1
        self._flags = b""

    def works_on(self, slot: int) -> bool:
        """Returns True if the slot's request has such fields."""
        return slot in self._args

    def works_on_any(self, slots: Int64s) -> bool:
        """Returns True if the request of any of the slots has such fields."""
        return bool(self._args) and not self._args.keys().isdisjoint(slots.tolist())

    def bans_in(self, slot: int) -> list[str]:
        """Returns the fields by which the slot's request rules tokens out."""
        return self._banning.get(slot, [])

    @property
    def any_bans(self) -> bool:
        """True if any request rules tokens out, so that a row may be left without a token."""
        return bool(self._banning)

    def apply(self, logits: Tensor, slots: Int64s) -> None:
        """Edits logits [rows, vocab_size] in place; row r is slot `slots[r]`, ascending. Repeatable in a step."""
        if not self.works_on_any(slots):
            return
        self._stop_flags[:] = True
        self._stop_flags[slots] = False
        flags = self._stop_flags.tobytes()
        same_rows, self._flags = flags == self._flags, flags
        for each in self._processors:
            if each.users:
                each.update(self._share_inputs, same_rows=same_rows)
                each.processor.apply(logits)


@dataclass(frozen=True)
class RequestParameters:
    """The parameters of the requests in some slots [n], which do not change from token to token; arrays [n].

    offsets: number of the first token's draw.
    """

    temperature: Floats
    min_p: Floats
    top_k: Int64s
    top_p: Floats
    seeds: NDArray[np.uint64]
    offsets: Int64s
    all_greedy: bool

    @classmethod
    def of(cls, share_inputs: Mapping[str, Any], slots: Int64s) -> RequestParameters:
        """Gathers them."""
        temperature: Floats = share_inputs["temperature_cpu"][slots, 0]
        return cls(
            temperature=temperature,
            min_p=share_inputs["min_p_cpu"][slots, 0],
            top_k=share_inputs["top_k_cpu"][slots, 0],
            top_p=share_inputs["top_p_cpu"][slots, 0],
            seeds=share_inputs["seed"][slots, 0],
            offsets=share_inputs["draw_offset"][slots, 0],
            all_greedy=not temperature.any(),
        )

    def draws(self, num_tokens: Int64s) -> Draws:
        """Returns the draws of the tokens that follow `num_tokens` [n] output tokens."""
        return self.draws_by(self.temperature if self.all_greedy else self.uniforms(num_tokens))

    def draws_by(self, uniform: Floats) -> Draws:
        """Returns draws by these numbers [n], which are unused if all requests take the most likely token."""
        return Draws(self.temperature, self.min_p, self.top_k, self.top_p, uniform)

    def uniforms(self, num_tokens: Int64s) -> Floats:
        """Returns the numbers [..., n] that draw the tokens after `num_tokens` [..., n] output tokens."""
        return seeded_uniform(self.seeds, (self.offsets + num_tokens).astype(np.uint64))


class DrawParameters:
    """Parameters of the next tokens' draws, kept while the slots hold the same requests.

    A token needs few numbers from many short arrays, and each operator on such an array takes microseconds. Requests
    enter and leave slots, for a rewind as well: in between, their numbers of tokens only grow.
    """

    def __init__(self) -> None:
        self._slots: bytes | None = None
        self._requests: RequestParameters
        # Of tokens from `_first` [n] on: [NUMBERS_AHEAD, n].
        self._uniforms: NDArray[np.float32]
        self._first: Int64s | None = None

    def forget(self) -> None:
        """Drops them, because a request has entered or left a slot."""
        self._slots = None

    def of(self, share_inputs: Mapping[str, Any], slots: Int64s) -> RequestParameters:
        """Returns the parameters of the requests in `slots` [n]."""
        if (key := slots.tobytes()) != self._slots:
            self._requests, self._slots, self._first = RequestParameters.of(share_inputs, slots), key, None
        return self._requests

    def draws(self, share_inputs: Mapping[str, Any], slots: Int64s) -> Draws:
        """Returns the draws of the next token of each slot [n]."""
        requests = self.of(share_inputs, slots)
        if requests.all_greedy:
            return requests.draws_by(requests.temperature)
        num_tokens: Int64s = share_inputs["step_idx"][slots, 0]
        if self._first is None:
            # The next step may have other slots; with the same ones, numbers are computed ahead.
            self._first = num_tokens - NUMBERS_AHEAD
            return requests.draws(num_tokens)
        if (num_tokens - self._first).max() >= NUMBERS_AHEAD:
            self._first = num_tokens
            self._uniforms = requests.uniforms(num_tokens + np.arange(NUMBERS_AHEAD)[:, None])
        return requests.draws_by(self._uniforms[num_tokens - self._first, np.arange(len(slots))])


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
        if sequence.params.logprobs is not None:
            self._logprobs.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._parameters.forget()
        self._tail.leave(slot)
        if slot in self._logprobs.counts:
            self._logprobs.leave(slot)

    def needs_each_token(self, slot: int) -> bool:
        """Returns True if the slot's request has penalties, bans or logprobs."""
        return self._tail.works_on(slot) or slot in self._logprobs.counts

    def draw_ahead(
        self, logits: Tensor, share_inputs: Mapping[str, Any], slots: Int64s, places: Int64s, *, guard: bool
    ) -> Tensor | Int64s:
        """Returns a token int64 [rows] for each row of logits [rows, vocab_size], where the logits are computed.

        Row r is for the token that is `places[r]` after the next one of slot `slots[r]`, which must not need each
        token. guard: a row may be without a token; it yields -1.
        """
        draws = RequestParameters.of(share_inputs, slots).draws(share_inputs["step_idx"][slots, 0] + places)
        draw = self.ops.draw_to_host if current_platform().computes_on_host else self.ops.draw
        return draw(logits, draws, guard=guard)

    def capture(self, logits: Tensor, slots: Int64s) -> None:
        """Keeps the rows of the raw logits [rows, vocab_size] that logprobs need; row r is slot `slots[r]`."""
        if self._logprobs.counts:
            self._logprobs.begin(logits, slots)

    def takes_the_most_likely(self, share_inputs: Mapping[str, Any], slots: Int64s) -> bool:
        """Returns True if only the most likely token of each row matters; call it after `capture`.

        Penalties and bans need the other logits, and so do log probabilities of the processed logits.
        """
        if not self._parameters.of(share_inputs, slots).all_greedy:
            return False
        shows_logits = self._wants_logprobs and self._logprobs.shows_what_is_drawn_from
        return not (self._tail.works_on_any(slots) or shows_logits)

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
        tokens_alone = not (also_read or meanwhile or self._wants_logprobs) and current_platform().computes_on_host
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
        found = self._logprobs.compute(logits, draws, tokens) if self._wants_logprobs else None
        listed = [] if found is None else [found.values, found.tokens, found.ranks]
        read = begin_read([tokens, *listed, *also_read])
        if meanwhile is not None:
            meanwhile(tokens)
        host_tokens, *rest = read()
        logprobs = {} if found is None else self._logprobs.unpack(*rest[: len(listed)])
        return SampledRows(host_tokens.astype(np.int64), logprobs, rest[len(listed) :])

    @property
    def _wants_logprobs(self) -> bool:
        """True if any row of the step needs logprobs."""
        return bool(self._logprobs.counts) and self._logprobs.asked_for

    def edit(self, logits: Tensor, slots: Int64s) -> Tensor:
        """Applies penalties and bans to logits [rows, vocab_size] in place and returns them; repeatable in a step."""
        self._tail.apply(logits, slots)
        return logits

    def bans_in(self, slot: int) -> list[str]:
        """The fields by which the slot's request has ruled tokens out."""
        return self._tail.bans_in(slot)


def _args_of(sequence: WorkerSequence) -> dict[str, Any]:
    """Returns the arguments of the tail's processors that change something."""
    params = sequence.params
    given = {
        "allowed_token_ids": params.allowed_token_ids,
        **{name: getattr(params, name) for name in NO_PENALTIES},
        "bad_words_token_ids": params.bad_words_token_ids or [],
        "min_tokens": params.min_tokens if sequence.stop_token_ids else 0,
        REWIND_BAN: sequence.bans.get(len(sequence.output_token_ids), OFF[REWIND_BAN]),
    }
    return {name: value for name, value in given.items() if value != OFF[name]}
