"""One processor in its place in a chain: the instance, its view, and its counters."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.chain.calls import CallRecorder
from fastdeploy_lp.logits_processor.chain.recorded_actions import ActionRecorder, ActionTotals
from fastdeploy_lp.logits_processor.chain.time_limit import TimeLimit
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor
from fastdeploy_lp.logits_processor.errors import contained, described, loggable, without_device_failures
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.share_inputs import ProcessorView
from fastdeploy_lp.logits_processor.stages import LOGITS
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors, WrongResultError, require_same_kind
from fastdeploy_lp.platforms import current_platform, to_device
from fastdeploy_lp.stats import ProcessorStats

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


Argument = TypeVar("Argument")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)
STATM = "/proc/self/statm"
FIRST_STEPS = 64
MEBIBYTE = 1 << 20


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


class FirstCalls:
    """Seconds beyond its time budget that a processor may take in its first `FIRST_STEPS` steps.

    In these steps code is compiled and modules are imported. Instances that are built later share the remaining time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds_left = seconds
        self._steps_left = FIRST_STEPS

    @property
    def seconds_left(self) -> float:
        """Seconds beyond the budget that are still excused."""
        return self._seconds_left if self._steps_left > 0 else 0.0

    def count_step(self) -> None:
        """Counts a step of the processor."""
        self._steps_left -= self._steps_left > 0

    def excuse(self, excess: float) -> float:
        """Returns the excused part of these seconds beyond the budget, and uses it up."""
        excused = min(max(excess, 0.0), self.seconds_left)
        self._seconds_left -= excused
        return excused


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
    steps, shared by the instances of one processor. limit: interrupts its calls. totals: of the request in each slot,
    kept current by the chain.
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
        totals: Mapping[int, ActionTotals] | None = None,
    ) -> None:
        self.declared = declared
        self.is_builtin = declared.source == "builtin"
        self.stats = stats
        self._recorder = recorder
        self._fd_config = fd_config
        self._budget = fd_config.structured_outputs_config.time_budget
        self._memory_budget = fd_config.structured_outputs_config.memory_budget * MEBIBYTE
        self.first_calls = first_calls or FirstCalls(fd_config.structured_outputs_config.first_calls)
        self._limit = limit
        self.step_seconds = 0.0
        # Before the next step.
        self._asked_seconds = 0.0
        # The memory of builtins is bounded by the slots.
        bounded = self.is_builtin or declared.dialect.bounds_memory
        watched = self._memory_budget > 0 and not bounded
        self._gauge = MemoryGauge() if watched else None
        # Of a device whose calls return before their work is done; its seconds of a step are known in the next one.
        self._watch = None if self.is_builtin else current_platform().watch()
        self._device_seconds = 0.0
        self.stage = declared.stage
        # Builtins observe the contract, and distinguish requests by the identity of the objects they receive.
        read_only = not self.is_builtin
        self.view = ProcessorView(fd_config.scheduler_config.max_num_seqs, read_only=read_only)
        # Slots of requests that the operator forces through it.
        self.forced: set[int] = set()
        self.actions = ActionRecorder(self._may_act_on, self, declared.output_model)
        # A builtin that acts declares its values or its rewinds.
        self._acts = not self.is_builtin or declared.output_model is not None or declared.max_rewind > 0
        self._totals: Mapping[int, ActionTotals] = {} if totals is None else totals
        # By slot, the most tokens that it may take back at once; only if it may take any back.
        self._max_rewind: dict[int, int] = {}
        self._stop_flags: Any = np.ones((0, 1), bool)
        self.processor: LogitsProcessor = OutOfService()
        self.changes_argmax = True
        # True if it sees only its users' rows, so that it cannot write to others.
        self._sees_users_only = False
        self._kept_in = self.is_builtin
        # Slots of requests that are outside of the phase to which they bind it.
        self._outside: set[int] = set()
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
        # Builtins, and processors that are called row by row, work on no rows but their users'.
        self._kept_in = self.is_builtin or isinstance(processor, PerRequestProcessor)
        self._sees_users_only = processor.only_with_args and not self._kept_in
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
        self.view.num_changes += 1
        self._seen.clear()
        # Steps without an update that are left, while the view has as many changes as at the last one.
        self._rest, self._updated_at = 0, self.view.num_changes
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
    def has_acted(self) -> bool:
        """True if it has recorded actions in this step."""
        return self._acts and self.actions.used

    @property
    def needs_update(self) -> bool:
        """True if its state must follow the slots: also once more after the last request that used it has left."""
        return self._was_used or self.has_work

    def rests(self, *, same_rows: bool) -> bool:
        """Returns True if its last `update_state` holds for this step too; call it once a step.

        same_rows: the stop flags have not changed since the last step.
        """
        if self._rest <= 0 or not same_rows or self.view.num_changes != self._updated_at:
            return False
        self._rest -= 1
        if self._acts:
            self.actions.begin_update()
            self.actions.end()
            self.view.drop_copies()
        return True

    def works_on(self, slot: int) -> bool:
        """Returns True if it may change the slot's row."""
        return slot in self.view.using or not (self.processor.only_with_args or slot in self._outside)

    @property
    def hides_rows(self) -> bool:
        """True if it must see only the rows of slots that it works on."""
        return self._sees_users_only or (bool(self._outside) and not (self._kept_in and self.processor.only_with_args))

    @property
    def measured_seconds(self) -> float:
        """Seconds of the host in this step or, if they are more, of the device in the last one."""
        return max(self.step_seconds, self._device_seconds)

    def exceeds_budget(self) -> bool:
        """Returns True if its time counts as too long; call it once a step."""
        # Nearly always; the rest would take three times as long.
        if self.step_seconds <= self._budget >= self._device_seconds:
            return False
        excess = self.measured_seconds - self._budget
        return excess > 0 < self._budget and excess > self.first_calls.excuse(excess)

    @property
    def exceeds_memory(self) -> bool:
        """True if it has taken more memory over all steps than its budget."""
        return self.grown > self._memory_budget > 0

    def enter(self, slot: int, selection: Selection, *, again: bool = False) -> None:
        """Puts a request into the slot; `again` if it is counted already."""
        self._seen.discard(slot)
        self.view.set_args(slot, selection.args_for(self.name))
        if self.declared.is_meant_for(selection):
            self.view.using.add(slot)
            self.stats.requests += not again
        if selection.forces(self.name):
            self.forced.add(slot)
        if self.declared.max_rewind and self.works_on(slot):
            self._max_rewind[slot] = self._rewind_for(self.view.args[slot])

    def step_in(self, slot: int, selection: Selection) -> None:
        """See `Phased`."""
        self._outside.discard(slot)
        self.enter(slot, selection, again=True)

    def step_out(self, slot: int) -> None:
        """See `Phased`: it may still take back tokens of before its phase, which are withheld."""
        max_rewind = self._max_rewind.get(slot)
        self.leave(slot)
        self._outside.add(slot)
        if max_rewind is not None:
            self._max_rewind[slot] = max_rewind

    def leave(self, slot: int) -> None:
        """Empties the slot."""
        self._seen.discard(slot)
        self._outside.discard(slot)
        self.view.set_args(slot, ProcessorArgs())
        self.view.using.discard(slot)
        self.forced.discard(slot)
        self._max_rewind.pop(slot, None)

    def begin_step(self) -> None:
        """Starts the count of a step's seconds with the ones since the last step."""
        self.step_seconds, self._asked_seconds = self._asked_seconds, 0.0
        self._device_seconds = 0.0 if self._watch is None else self._watch.take()

    def update_state(self, share_inputs: Mapping[str, Any], stop_flags: Any) -> None:
        """Runs the processor's `update_state`, and counts the time."""
        self.view.bind(share_inputs, stop_flags)
        self._stop_flags = stop_flags
        if self._acts:
            self.actions.begin_update()
        self._was_used = bool(self.view.using)
        self.first_calls.count_step()
        self._rest, self._updated_at = 0, self.view.num_changes
        rest = self._watched(self._update, self.view)
        if self.stage == LOGITS:
            self._rest = rest
        if self.forces_tokens:
            self._seen.update(np.flatnonzero(~stop_flags[:, 0]).tolist())

    def _update(self, view: ProcessorView) -> int:
        self.processor.update_state(view)
        return index(self.processor.steps_at_rest)

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the changed logits; raises WrongResultError for a result that violates the contract."""
        if self._acts:
            self.actions.begin_apply()
        result = self._watched(self.processor.apply, logits)
        if result is not logits:
            require_same_kind(result, logits)
        return result

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor | NDArray[np.int64]:
        """Returns the processor's choice of a token for each row, int64 [rows]: on the device, unless a builtin's.

        Raises WrongResultError for a result that violates the contract.
        """
        if self._acts:
            self.actions.begin_apply()
        tokens: Any = self._watched(partial(self.processor.draw, logits), uniforms)
        return tokens if self.is_builtin else require_tokens(tokens, len(uniforms))

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
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"forced_tokens returned {token}; token ids are 0 to {self.vocab_size - 1}")
        return tokens

    def _rewind_for(self, args: ProcessorArgs) -> int:
        try:
            with self._limit or nullcontext():
                return self.declared.rewind_for(args)
        except BaseException as error:
            logger.error("logits processor %s: rewind_for failed", self.name, exc_info=loggable(contained(error)))
            self.stats.faults += 1
            # Its limit without arguments holds for any.
            return self.declared.max_rewind

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._fd_config.model_config.vocab_size

    def max_rewind(self, slot: int) -> int:
        """Returns the most tokens of the slot's request that it may take back at once; 0 for none."""
        return self._max_rewind.get(slot, 0)

    def rewindable(self, slot: int) -> int:
        """Returns how many of the slot's last tokens it can take back now; no client may have received them."""
        totals = self._totals.get(slot)
        return 0 if totals is None else min(totals.rewindable, self.max_rewind(slot))

    def no_rewind(self, slot: int, count: int) -> str | None:
        """Returns the reason why it cannot take back `count` tokens of a slot now, None if it can."""
        most, length = self.max_rewind(slot), int(self.view["step_idx"][slot, 0])
        if not most:
            return f"{self.name} declares no max_rewind, the most tokens that it takes back"
        if count > most:
            return f"{count} tokens; max_rewind of {self.name} allows {most} here"
        if count > length:
            return f"{count} tokens; the output has {length}, and the prompt cannot be taken back"
        left = self.rewindable(slot)
        return f"{count} tokens; the client may have all but {left} since the last rewind" if count > left else None

    def _may_act_on(self, slot: int) -> bool:
        flags = self._stop_flags
        return 0 <= slot < len(flags) and not flags[slot, 0] and self.works_on(slot)

    def _watched(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        """Returns `call(argument)`; counts its time and memory.

        Raises only errors that are an `Exception`, and DeviceLostError.
        """
        if self._recorder is not None:
            self._recorder.begin_step()
        resident = 0 if self._gauge is None else self._gauge.resident()
        began = time.perf_counter()
        try:
            if self._watch is not None:
                self._watch.start()
            if self._limit is None:
                result = call(argument)
            else:
                with self._limit.with_more(self.first_calls.seconds_left):
                    result = call(argument)
            if self._watch is not None:
                self._watch.stop()
            if not self.is_builtin:
                self.view.require_unchanged()
        except RowErrors as error:
            raise RowErrors({row: without_device_failures(cause) for row, cause in error.by_row.items()}) from error
        except Exception as error:
            found = without_device_failures(error)
            if found is error:
                raise
            raise found from error
        except BaseException as error:
            raise contained(error) from error
        finally:
            seconds = time.perf_counter() - began
            if self._acts:
                self.actions.end()
            if self._recorder is not None:
                self._recorder.end()
            self.stats.seconds += seconds
            self.step_seconds += seconds
            if self._gauge is not None:
                # Never below 0: it may free memory that others allocated.
                self.grown = max(0, self.grown + self._gauge.resident() - resident)
        return result


def require_tokens(result: Any, rows: int) -> Tensor:
    """Returns a choice of tokens as int64 [rows]; raises WrongResultError for anything but such a tensor or array."""
    import paddle

    if isinstance(result, np.ndarray) and np.issubdtype(result.dtype, np.integer):
        result = to_device(result.astype(np.int64))
    if not isinstance(result, paddle.Tensor):
        raise WrongResultError(f"draw returned {type(result).__name__}; it must return a token for each row")
    if list(result.shape) != [rows] or result.dtype not in (paddle.int64, paddle.int32):
        raise WrongResultError(f"draw returned {list(result.shape)} {result.dtype}; it must return int64 [{rows}]")
    return result.astype("int64")
