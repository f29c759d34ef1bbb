"""One processor in its place in a chain: the instance, what it may see, and its counters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.memory_gauge import MemoryGauge
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.stats import ProcessorStats
from fastdeploy_lp.logits_processor.time_limit import FirstCalls
from fastdeploy_lp.logits_processor.vllm_v1 import require_same_kind

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


EXITED = "it called for the end of the process, which is not its own"


class ExitError(Exception):
    """A processor called `sys.exit`."""


class ProcessorView(Mapping[str, Any]):
    """`share_inputs` as one processor sees it: its own arguments, and the rows of its own group.

    Two fields are of the view alone. `using_slots`: the slots whose requests are meant for this processor.
    `args_versions` [S]: a number for each slot that rises with every change of its arguments.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.args = [ProcessorArgs() for _ in range(max_num_seqs)]
        self.using: set[int] = set()
        self._share_inputs: Mapping[str, Any] = {}
        self._own: dict[str, Any] = {
            "logits_processors_args": self.args,
            "using_slots": self.using,
            "args_versions": np.zeros(max_num_seqs, np.int64),
        }

    def set_args(self, slot: int, args: ProcessorArgs) -> None:
        """Change the arguments that the processor sees in a slot."""
        self.args[slot] = args
        self._own["args_versions"][slot] += 1

    def bind(self, share_inputs: Mapping[str, Any], stop_flags: Any) -> None:
        """Look at these slot arrays, with these stop flags."""
        self._share_inputs = share_inputs
        self._own["stop_flags"] = stop_flags

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else self._share_inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own.keys() | self._share_inputs.keys())

    def __len__(self) -> int:
        return len(self._own.keys() | self._share_inputs.keys())


class ChainEntry:
    """A processor, built anew when it has failed."""

    def __init__(
        self,
        declared: DeclaredProcessor,
        fd_config: FDConfig,
        stats: ProcessorStats,
        first_calls: FirstCalls | None = None,
    ) -> None:
        self.declared = declared
        self.stats = stats
        self._fd_config = fd_config
        self._budget = fd_config.structured_outputs_config.time_budget
        self.first_calls = first_calls or FirstCalls(fd_config.structured_outputs_config.first_calls)
        self.step_seconds = 0.0
        # What the builtin ones keep is bounded by the slots.
        watched = fd_config.structured_outputs_config.memory_budget > 0 and declared.source != "builtin"
        self._gauge = MemoryGauge() if watched else None
        self.view = ProcessorView(fd_config.scheduler_config.max_num_seqs)
        self.rebuild()

    def rebuild(self) -> None:
        """A fresh instance, whose state comes from the next `update_state`.

        Raises RuntimeError, and keeps the old one, if it cannot be built.
        """
        # Where it was broken off in its first calls, nobody asks `exceeds_budget`.
        self.first_calls.excuse(self.step_seconds - self._budget)
        processor = self.declared.build(self._fd_config)
        try:
            self.changes_argmax = not processor.is_argmax_invariant()
        except Exception as error:
            reason = f"is_argmax_invariant failed: {type(error).__name__}: {error}"
            raise RuntimeError(f"logits processor {self.name} cannot be built: {reason}") from error
        self.processor = processor
        self._was_used = False
        # Bytes that this instance has taken and not given back, as far as can be told from outside.
        self.grown = 0

    @property
    def name(self) -> str:
        """Its declared name."""
        return self.declared.name

    @property
    def has_work(self) -> bool:
        """Whether some request may be changed by it."""
        return bool(self.view.using) or not self.processor.only_with_args

    @property
    def needs_update(self) -> bool:
        """Whether its state has to follow the slots: also once more when the last request that used it has left."""
        return self.has_work or self._was_used

    def works_on(self, slot: int) -> bool:
        """Whether it may change the slot's row."""
        return slot in self.view.using or not self.processor.only_with_args

    def exceeds_budget(self) -> bool:
        """Whether its time in this step counts as too long; to be asked once a step."""
        excess = self.step_seconds - self._budget
        return self._budget > 0 and excess > self.first_calls.excuse(excess)

    def enter(self, slot: int, selection: Selection, *, again: bool = False) -> None:
        """A request takes the slot; `again` if it is counted already."""
        self.view.set_args(slot, selection.args_for(self.name))
        if self.declared.is_used_by(selection):
            self.view.using.add(slot)
            self.stats.requests += not again

    def leave(self, slot: int) -> None:
        """The slot is empty again."""
        self.view.set_args(slot, ProcessorArgs())
        self.view.using.discard(slot)

    def update_state(self, share_inputs: Mapping[str, Any], stop_flags: Any) -> None:
        """Run it, and count the time it took."""
        self.view.bind(share_inputs, stop_flags)
        self._was_used = bool(self.view.using)
        self.first_calls.count_step()
        resident, began = self._resident(), time.perf_counter()
        try:
            self.processor.update_state(self.view)
        except SystemExit as error:
            raise ExitError(EXITED) from error
        finally:
            self._count(time.perf_counter() - began, resident)

    def apply(self, logits: Tensor) -> Tensor:
        """The changed logits; raises WrongResultError for a result that the contract rules out."""
        resident, began = self._resident(), time.perf_counter()
        try:
            result = self.processor.apply(logits)
        except SystemExit as error:
            raise ExitError(EXITED) from error
        finally:
            self._count(time.perf_counter() - began, resident)
        if result is not logits:
            require_same_kind(result, logits)
        return result

    def _resident(self) -> int:
        return 0 if self._gauge is None else self._gauge.resident()

    def _count(self, seconds: float, resident: int) -> None:
        self.stats.seconds += seconds
        self.step_seconds += seconds
        if self._gauge is not None:
            # Never below 0: what it gives back may have been taken by others.
            self.grown = max(0, self.grown + self._gauge.resident() - resident)
