"""One processor in its place in a chain: the instance, its view, and its counters."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.chain.calls import CallRecorder
from fastdeploy_lp.logits_processor.chain.recorded_actions import ActionRecorder
from fastdeploy_lp.logits_processor.chain.time_limit import FirstCalls, TimeLimit
from fastdeploy_lp.logits_processor.chain.view import ProcessorView
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor
from fastdeploy_lp.logits_processor.errors import contained, described
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.vllm_v1 import require_same_kind
from fastdeploy_lp.stats import ProcessorStats

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


Argument = TypeVar("Argument")
Result = TypeVar("Result")

STATM = "/proc/self/statm"


class MemoryGauge:
    """Reads the kernel's resident size of this process in about two microseconds; 0 if the kernel has no such file.

    GPU memory is not included.
    """

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._file: int | None = None
        if os.path.exists(STATM):
            self._file = os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def resident(self) -> int:
        """Returns the resident size in bytes."""
        if self._file is None:
            return 0
        return int(os.pread(self._file, 64, 0).split()[1]) * self._page


class OutOfService(LogitsProcessor):
    """Placeholder for a processor that is not built, and that may turn out to work on every row."""

    keeps_rows_valid = True

    def __init__(self) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Never called: the chain leaves out processors in quarantine."""

    def apply(self, logits: Tensor) -> Tensor:
        """Never called, like `update_state`."""
        return logits


class ChainEntry:
    """A processor, rebuilt after a failure.

    A processor that is already in quarantine is not built before its reset: its code may have ended the last worker.
    recorder: records each call, for a processor that may end the process. first_calls: the extra time of its first
    steps, shared by the instances of one processor. limit: interrupts its calls.
    """

    def __init__(
        self,
        declared: DeclaredProcessor,
        fd_config: FDConfig,
        stats: ProcessorStats,
        *,
        recorder: CallRecorder | None = None,
        first_calls: FirstCalls | None = None,
        limit: TimeLimit | None = None,
        in_service: bool = True,
    ) -> None:
        self.declared = declared
        self.is_builtin = declared.source == "builtin"
        self.stats = stats
        self._recorder = recorder
        self._fd_config = fd_config
        self._budget = fd_config.structured_outputs_config.time_budget
        self.first_calls = first_calls or FirstCalls(fd_config.structured_outputs_config.first_calls)
        self._limit = limit
        self.step_seconds = 0.0
        # Before the next step.
        self._asked_seconds = 0.0
        # The memory of builtins is bounded by the slots.
        bounded = self.is_builtin or declared.dialect.bounds_memory
        watched = fd_config.structured_outputs_config.memory_budget > 0 and not bounded
        self._gauge = MemoryGauge() if watched else None
        # Builtins observe the contract, and distinguish requests by the identity of the objects they receive.
        read_only = not self.is_builtin
        self.view = ProcessorView(fd_config.scheduler_config.max_num_seqs, read_only=read_only)
        # Slots of requests that the operator forces through it.
        self.forced: set[int] = set()
        self.actions = ActionRecorder(self._may_act_on, declared.output_model)
        self._stop_flags: Any = np.ones((0, 1), bool)
        self.processor: LogitsProcessor = OutOfService()
        self.changes_argmax = True
        # True if it sees only its users' rows, so that it cannot write to others.
        self.sees_users_only = False
        # True if it can be asked for the tokens that it will force.
        self.forces_tokens = False
        # Slots whose requests this instance has seen with a row; kept if it can be asked.
        self._seen: set[int] = set()
        self._reset_use()
        if in_service:
            self.rebuild()

    def rebuild(self) -> None:
        """Replaces the instance by a new one, whose state the next `update_state` sets.

        Raises RuntimeError, and keeps the old instance, if the new one cannot be built.
        """
        # After a timeout in its first calls, no caller asks `exceeds_budget`.
        self.first_calls.excuse(self.step_seconds - self._budget)
        with self.recorded_build():
            processor = self.declared.build(self._fd_config)
            changes_argmax = not self._is_argmax_invariant(processor)
        processor.use_actions(self.actions)
        self.processor, self.changes_argmax = processor, changes_argmax
        # Not needed for builtins, and for processors that are called row by row.
        kept_in = self.is_builtin or isinstance(processor, PerRequestProcessor)
        self.sees_users_only = processor.only_with_args and not kept_in
        self.forces_tokens = type(processor).forced_tokens is not LogitsProcessor.forced_tokens
        self._reset_use()

    @contextmanager
    def recorded_build(self) -> Iterator[None]:
        """Records that a constructor of the processor runs in this block, in any thread."""
        if self._recorder is None:
            yield
            return
        self._recorder.begin_build()
        try:
            yield
        finally:
            self._recorder.end()

    def _is_argmax_invariant(self, processor: LogitsProcessor) -> bool:
        try:
            return processor.is_argmax_invariant()
        except BaseException as error:
            reason = f"is_argmax_invariant failed: {described(contained(error))}"
            raise RuntimeError(f"logits processor {self.name} cannot be built: {reason}") from error

    def _reset_use(self) -> None:
        self._was_used = False
        self._seen.clear()
        # Bytes that this instance has allocated and not freed, as estimated from outside.
        self.grown = 0

    @property
    def name(self) -> str:
        """Declared name."""
        return self.declared.name

    @property
    def has_work(self) -> bool:
        """True if it may change some request's row."""
        return bool(self.view.using) or not self.processor.only_with_args

    @property
    def needs_update(self) -> bool:
        """True if its state must follow the slots: also once more after the last request that used it has left."""
        return self._was_used or self.has_work

    def works_on(self, slot: int) -> bool:
        """Returns True if it may change the slot's row."""
        return slot in self.view.using or not self.processor.only_with_args

    def exceeds_budget(self) -> bool:
        """Returns True if its time in this step counts as too long; call it once a step."""
        excess = self.step_seconds - self._budget
        return excess > 0 < self._budget and excess > self.first_calls.excuse(excess)

    def enter(self, slot: int, selection: Selection, *, again: bool = False) -> None:
        """Puts a request into the slot; `again` if it is counted already."""
        self._seen.discard(slot)
        self.view.set_args(slot, selection.args_for(self.name))
        if self.declared.is_meant_for(selection):
            self.view.using.add(slot)
            self.stats.requests += not again
        if selection.forces(self.name):
            self.forced.add(slot)

    def leave(self, slot: int) -> None:
        """Empties the slot."""
        self._seen.discard(slot)
        self.view.set_args(slot, ProcessorArgs())
        self.view.using.discard(slot)
        self.forced.discard(slot)

    def begin_step(self) -> None:
        """Starts the count of a step's seconds with the ones since the last step."""
        self.step_seconds, self._asked_seconds = self._asked_seconds, 0.0

    def update_state(self, share_inputs: Mapping[str, Any], stop_flags: Any) -> None:
        """Runs the processor's `update_state`, and counts the time."""
        self.view.bind(share_inputs, stop_flags)
        self._stop_flags = stop_flags
        self.actions.begin_update()
        self._was_used = bool(self.view.using)
        self.first_calls.count_step()
        self._watched(self.processor.update_state, self.view)
        if self.forces_tokens:
            self._seen.update(np.flatnonzero(~stop_flags[:, 0]).tolist())

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the changed logits; raises WrongResultError for a result that violates the contract."""
        self.actions.begin_apply()
        result = self._watched(self.processor.apply, logits)
        if result is not logits:
            require_same_kind(result, logits)
        return result

    def forced_tokens(self, slot: int, output: Sequence[int], count: int) -> list[int]:
        """Returns up to `count` tokens that the processor will force in a slot after `output`; counts the time.

        Raises TypeError or ValueError for a result that is no sequence of token ids.
        """
        if slot not in self._seen:
            return []
        before = self.step_seconds
        try:
            return self._watched(partial(self._ask, slot, count), output)
        finally:
            self._asked_seconds += self.step_seconds - before

    def _ask(self, slot: int, count: int, output: Sequence[int]) -> list[int]:
        tokens = [index(token) for token in islice(self.processor.forced_tokens(slot, output), count)]
        vocab_size = self._fd_config.model_config.vocab_size
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise ValueError(f"forced_tokens returned {token}; token ids are 0 to {vocab_size - 1}")
        return tokens

    def _may_act_on(self, slot: int) -> bool:
        flags = self._stop_flags
        return 0 <= slot < len(flags) and not flags[slot, 0] and self.works_on(slot)

    def _watched(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        """Returns `call(argument)`; counts its time and memory, and raises only errors that are an `Exception`."""
        if self._recorder is not None:
            self._recorder.begin_step()
        resident = 0 if self._gauge is None else self._gauge.resident()
        began = time.perf_counter()
        try:
            if self._limit is None:
                result = call(argument)
            else:
                with self._limit.with_more(self.first_calls.seconds_left):
                    result = call(argument)
            if not self.is_builtin:
                self.view.require_unchanged()
        except Exception:
            raise
        except BaseException as error:
            raise contained(error) from error
        finally:
            seconds = time.perf_counter() - began
            self.actions.end()
            if self._recorder is not None:
                self._recorder.end()
            self.stats.seconds += seconds
            self.step_seconds += seconds
            if self._gauge is not None:
                # Never below 0: it may free memory that others allocated.
                self.grown = max(0, self.grown + self._gauge.resident() - resident)
        return result
