"""vLLM's V1 interface for logits processors, on Paddle tensors.

A processor written for `vllm.v1.sample.logits_processor` runs on this server if it imports these names instead.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from fastdeploy_lp.logits_processor.actions import ACTIONS, OUTSIDE, Actions, RequestActions, takes_actions
from fastdeploy_lp.logits_processor.errors import contained, described
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig, VllmModelConfig, VllmSchedulerConfig

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.request.sampling_params import SamplingParams

__all__ = [
    "AdapterLogitsProcessor",
    "AddedRequest",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "MovedRequest",
    "RemovedRequest",
    "RequestLogitsProcessor",
    "RowErrors",
    "VllmConfig",
    "VllmModelConfig",
    "VllmSchedulerConfig",
    "WrongResultError",
]

RequestLogitsProcessor = Callable[..., Any]
"""`(output_ids, row) -> row` or `(prompt_ids, output_ids, row) -> row`, row being [vocab_size].

A callable with a parameter `actions` gets its request's `RequestActions`, by this name."""

RowCallable = Callable[[Any], Any]
"""The same with the request's tokens filled in: `row -> row`."""


class MoveDirectionality(Enum):
    """UNIDIRECTIONAL: a → b, which replaces b. SWAP: a ↔ b."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, Any, "list[int] | None", "list[int]"]
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of the batch since the last step; process removed, then added, then moved.

    batch_size: current number of rows. removed: rows that were freed and not reused. added: (row, params, prompt ids,
    output ids); output ids is a live list that grows. moved: (from, to, direction), in order.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """A batch-level processor that receives the changes of the batch."""

    actions: Actions = OUTSIDE
    """Its verbs, by rows instead of slots; vLLM has none."""

    @classmethod  # noqa: B027 - most refuse nothing
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for parameters that cannot be served; runs when a request arrives."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        """Sets up state."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """Returns the changed logits [rows, vocab_size]; may change them in place."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Returns True if no row's most likely token can ever change; called once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Updates the state before each step; `batch_update` is None if the batch has not changed."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Runs a separate callable for each request that needs one."""

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002 - contract
        self.req_info: dict[int, RowCallable] = {}
        # Of the callable that runs.
        self._request_actions = RequestActions()

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Returns the callable for a new request, None to leave the request alone."""

    def _new_state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> RowCallable | None:
        """Returns the callable of a new request with its tokens filled in; vLLM's name, which subclasses override."""
        processor = self.new_req_logits_processor(params)
        return None if processor is None else bind_request(processor, prompt_ids, output_ids, self._request_actions)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keeps every row's callable with its request."""
        follow_rows(self.req_info, batch_update, self._new_state)

    def apply(self, logits: Tensor) -> Tensor:
        """Runs each callable on its row; one that fails is dropped, and the others still run."""
        apply_rows(self.req_info, logits, self._request_actions, self.actions)
        return logits


def follow_rows(
    rows: dict[int, RowCallable],
    batch_update: BatchUpdate | None,
    new_state: Callable[[Any, Any, Any], RowCallable | None],
) -> None:
    """Keeps the callables `rows` with their requests; raises RowErrors for requests whose `new_state` raised."""
    if batch_update is None:
        return
    failed: dict[int, Exception] = {}
    for row in batch_update.removed:
        rows.pop(row, None)
    for row, params, prompt_ids, output_ids in batch_update.added:
        rows.pop(row, None)
        try:
            processor = new_state(params, prompt_ids, output_ids)
            if processor is not None:
                rows[row] = processor
        except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
            failed[row] = contained(error)
    for source, target, direction in batch_update.moved:
        _move(rows, source, target, direction)
        _move(failed, source, target, direction)
    raise_row_errors(failed)


def apply_rows(
    rows: dict[int, RowCallable], logits: Any, own: RequestActions | None = None, actions: Actions = OUTSIDE
) -> None:
    """Runs each callable on its row of `logits` [rows, vocab_size], in place.

    Drops a callable that raises, still runs the others, then raises RowErrors. `own`: the verbs
    of the running callable, which are repeated for its row by `actions`.
    """
    failed: dict[int, Exception] = {}
    own = own or RequestActions()
    for row, processor in list(rows.items()):
        try:
            part = logits[row]
            with own.of(actions, row):
                made = require_same_kind(processor(part), part)
            logits[row] = made
            own.pass_on(actions, row)
        except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
            failed[row] = contained(error)
            del rows[row]
    raise_row_errors(failed)


class RowErrors(Exception):  # noqa: N818 - several errors, by row
    """Request-level callables failed: only the requests of these rows are affected; all other rows are processed."""

    def __init__(self, by_row: dict[int, Exception]) -> None:
        super().__init__(", ".join(f"row {row}: {described(error)}" for row, error in by_row.items()))
        self.by_row = by_row


def raise_row_errors(by_row: dict[int, Exception]) -> None:
    """Raises RowErrors if there are errors."""
    if by_row:
        raise RowErrors(by_row)


Value = TypeVar("Value")


def _move(by_row: dict[int, Value], source: int, target: int, direction: MoveDirectionality) -> None:
    moved, replaced = by_row.pop(source, None), by_row.pop(target, None)
    if moved is not None:
        by_row[target] = moved
    if direction is MoveDirectionality.SWAP and replaced is not None:
        by_row[source] = replaced


class WrongResultError(TypeError):
    """A processor returned something other than logits of the given shape and dtype."""


def require_same_kind(result: Any, given: Any) -> Any:
    """Returns `result` if it is a tensor of the shape and dtype of `given`; raises WrongResultError otherwise."""
    if not isinstance(result, type(given)):
        raise WrongResultError(f"returned {type(result).__name__}; it must return the changed logits")
    if result.shape != given.shape or result.dtype != given.dtype:
        raise WrongResultError(
            f"returned {list(result.shape)} {result.dtype}; it must return {list(given.shape)} {given.dtype}"
        )
    return result


def bind_request(
    processor: RequestLogitsProcessor,
    prompt_ids: list[int] | None,
    output_ids: list[int],
    actions: RequestActions | None = None,
) -> RowCallable:
    """Returns the callable with its request's tokens filled in; three-argument callables get the prompt first.

    Raises TypeError for a callable that takes neither two nor three arguments, besides `actions`.
    """
    count = len(inspect.signature(processor).parameters)
    if takes_actions(processor):
        processor, count = functools.partial(processor, **{ACTIONS: actions or RequestActions()}), count - 1
    if count == 3:
        return lambda row: processor(prompt_ids or [], output_ids, row)
    if count == 2:
        return lambda row: processor(output_ids, row)
    raise TypeError(f"a request-level processor takes (output_ids, row) or (prompt_ids, output_ids, row), not {count}")
