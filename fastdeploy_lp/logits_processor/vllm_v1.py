"""vLLM's V1 interface for logits processors, on Paddle tensors.

A processor written for `vllm.v1.sample.logits_processor` becomes one for this server by importing these names instead.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from fastdeploy_lp.logits_processor.author_code import contained, described

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.sampling_params import SamplingParams

RequestLogitsProcessor = Callable[..., Any]
"""`(output_ids, row) -> row` or `(prompt_ids, output_ids, row) -> row`, row being [vocab_size]."""


class MoveDirectionality(Enum):
    """UNIDIRECTIONAL: a → b, what was at b is gone. SWAP: a ↔ b."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, Any, "list[int] | None", "list[int]"]
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch changed since the last step; process removed, then added, then moved.

    batch_size: rows now. removed: rows that were freed and not taken again. added: (row, params, prompt ids, output
    ids), the output ids being a list that goes on growing. moved: (from, to, direction), in order.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


@dataclass(frozen=True)
class VllmModelConfig:
    """What processors read of the model."""

    model: str
    dtype: str
    max_model_len: int
    vocab_size: int

    def get_vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self.vocab_size


@dataclass(frozen=True)
class VllmSchedulerConfig:
    """What processors read of the scheduler."""

    max_num_seqs: int


@dataclass(frozen=True)
class VllmConfig:
    """The configuration object given to a processor's constructor, with the attributes that processors read."""

    model_config: VllmModelConfig
    scheduler_config: VllmSchedulerConfig
    fd_config: FDConfig

    @classmethod
    def from_fd_config(cls, fd_config: FDConfig) -> VllmConfig:
        """The same facts under vLLM's names."""
        model = fd_config.model_config
        return cls(
            VllmModelConfig(model.model, model.dtype, model.max_model_len, model.vocab_size),
            VllmSchedulerConfig(fd_config.scheduler_config.max_num_seqs),
            fd_config,
        )


class LogitsProcessor(ABC):
    """A batch-level processor that is told of the batch by changes to it."""

    @classmethod  # noqa: B027 - most refuse nothing
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for parameters that cannot be served; runs when a request arrives."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        """Set up state."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """The changed logits [rows, vocab_size], in place or not."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether no row's most likely token can ever change; read once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take note of the batch before each step; None when it is made up as before."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Runs a callable of its own for each request that wants one."""

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002 - contract
        self._rows: dict[int, Callable[[Any], Any]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The callable for a new request; None leaves the request alone."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keep every row's callable with its request."""
        if batch_update is None:
            return
        failed: dict[int, Exception] = {}
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self._rows.pop(row, None)
            try:
                processor = self.new_req_logits_processor(params)
                if processor is not None:
                    self._rows[row] = bind_request(processor, prompt_ids, output_ids)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                failed[row] = contained(error)
        for source, target, direction in batch_update.moved:
            _move(self._rows, source, target, direction)
            _move(failed, source, target, direction)
        raise_row_errors(failed)

    def apply(self, logits: Tensor) -> Tensor:
        """Each callable on its own row; one that fails is dropped, and the others still run."""
        failed: dict[int, Exception] = {}
        for row, processor in list(self._rows.items()):
            try:
                part = logits[row]
                logits[row] = require_same_kind(processor(part), part)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                failed[row] = contained(error)
                del self._rows[row]
        raise_row_errors(failed)
        return logits


class RowErrors(Exception):  # noqa: N818 - several errors, by row
    """Request-level callables failed: only the requests of these rows are concerned, all other rows are done."""

    def __init__(self, by_row: dict[int, Exception]) -> None:
        super().__init__(", ".join(f"row {row}: {described(error)}" for row, error in by_row.items()))
        self.by_row = by_row


def raise_row_errors(by_row: dict[int, Exception]) -> None:
    """Raise RowErrors if there are any."""
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
    """A processor returned something else than logits of the shape and dtype that it was given."""


def require_same_kind(result: Any, given: Any) -> Any:
    """`result` if it is a tensor of the shape and dtype of `given`; raises WrongResultError otherwise."""
    if not isinstance(result, type(given)):
        raise WrongResultError(f"returned {type(result).__name__}; it must return the changed logits")
    if result.shape != given.shape or result.dtype != given.dtype:
        raise WrongResultError(
            f"returned {list(result.shape)} {result.dtype}; it must return {list(given.shape)} {given.dtype}"
        )
    return result


def bind_request(
    processor: RequestLogitsProcessor, prompt_ids: list[int] | None, output_ids: list[int]
) -> Callable[[Any], Any]:
    """The callable with its request's tokens filled in; three-argument callables get the prompt first.

    Raises TypeError for a callable that takes neither two nor three arguments.
    """
    count = len(inspect.signature(processor).parameters)
    if count == 3:
        return lambda row: processor(prompt_ids or [], output_ids, row)
    if count == 2:
        return lambda row: processor(output_ids, row)
    raise TypeError(f"a request-level processor takes (output_ids, row) or (prompt_ids, output_ids, row), not {count}")
