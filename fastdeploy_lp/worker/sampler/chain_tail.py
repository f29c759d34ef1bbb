"""The chain's fixed tail: builtins that serve the request fields which change single logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.builtin.bans import (
    AllowedTokensLogitsProcessor,
    BadWordsLogitsProcessor,
    MinTokensLogitsProcessor,
)
from fastdeploy_lp.logits_processor.builtin.penalties import NO_PENALTIES, TokenPenaltyProcessor
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.model_executor.ops.row_ops import Int64s, RowEdits
from fastdeploy_lp.worker.sampler.rewind_bans import REWIND_BAN, RewindBans
from fastdeploy_lp.worker.sequence import Sequence

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


class ChainTail:
    """Runs the builtins of `PROCESSORS` with arguments from requests' own fields.

    Requests enter and leave slots; those without such fields have no state and cost nothing.
    """

    def __init__(self, fd_config: FDConfig, edits: RowEdits) -> None:
        slots = fd_config.scheduler_config.max_num_seqs
        # Each with the slots whose requests use it.
        self._processors: list[tuple[SlotProcessor[Any], set[int]]] = [
            (processor(fd_config, edits), set()) for processor in PROCESSORS
        ]
        self._args: dict[int, Mapping[str, Any]] = {}
        self._banning: dict[int, list[str]] = {}
        self._stop_flags = np.ones((slots, 1), bool)
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

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot, with or without output."""
        args = _args_of(sequence)
        if not args:
            return
        slot = sequence.slot
        self._args[slot] = args
        if banning := [field for name, field in BANS.items() if name in args]:
            self._banning[slot] = banning
        for (_, users), names in zip(self._processors, PROCESSORS.values(), strict=True):
            if not args.keys().isdisjoint(names):
                users.add(slot)
        self._write(slot, args, sequence.prompt_token_ids, sequence.output_token_ids, sequence.params)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        if self._args.pop(slot, None) is not None:
            self._banning.pop(slot, None)
            for _, users in self._processors:
                users.discard(slot)
            self._write(slot, None, None, None, None)

    def _write(self, slot: int, *values: Any) -> None:
        for slot_list, value in zip(self._lists.values(), values, strict=True):
            slot_list[slot] = value
        self._versions[slot] += 1

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
        for processor, users in self._processors:
            if users:
                processor.update_state(self._share_inputs)
                processor.apply(logits)


def _args_of(sequence: Sequence) -> dict[str, Any]:
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
