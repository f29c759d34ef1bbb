"""vLLM's current interface for logits processors, of its model runner V2, on Paddle tensors.

State belongs to a request's slot, which stays the same while the request runs. A processor written for
`vllm.v1.worker.gpu.sample.logits_processor` runs on this server if it imports these names instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from fastdeploy_lp.logits_processor.actions import OUTSIDE, Actions
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig, VllmModelConfig, VllmSchedulerConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from paddle import Tensor

    from fastdeploy_lp.request.sampling_params import SamplingParams

__all__ = [
    "LogitsContext",
    "LogitsProcRequestState",
    "LogitsProcessor",
    "VllmConfig",
    "VllmModelConfig",
    "VllmSchedulerConfig",
]


@dataclass(frozen=True)
class LogitsProcRequestState:
    """The requests in the slots; the arrays follow the requests, and a processor must not write to them.

    device: where a processor keeps its tensors. max_num_reqs: number of slots. vocab_size: columns of the logits.
    all_token_ids: `gpu` [slots, max_model_len] int32, prompt and output, valid up to `total_len`.
    prompt_len, prefill_len, total_len: `gpu` and the host's `np`, [slots] int32: tokens of the prompt; tokens when the
    request took the slot, after a preemption with its output so far; tokens now.
    """

    device: Any
    max_num_reqs: int
    vocab_size: int
    all_token_ids: Any
    prompt_len: Any
    prefill_len: Any
    total_len: Any

    @classmethod
    def from_request_state(cls, req_states: Any) -> Self:
        """Returns the state with the attributes of the same names."""
        return cls(**{field.name: getattr(req_states, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class LogitsContext:
    """The rows of a step. Each request has one row here: draft tokens are verified one after another.

    expanded_idx_mapping [rows], idx_mapping [requests]: the slot of each row, int64; the same numbers.
    idx_mapping_np [requests]: the same on the host. expanded_local_pos [rows] int32: zeros.
    input_ids [rows] int32: the last token of each row's request. pos [rows] int64: its position.
    seq_lens_upper_bound_np [requests] int32: number of tokens, on the host; exact.
    """

    expanded_idx_mapping: Tensor
    idx_mapping: Tensor
    idx_mapping_np: NDArray[np.intp]
    expanded_local_pos: Tensor
    input_ids: Tensor
    pos: Tensor
    seq_lens_upper_bound_np: NDArray[np.int32]


class LogitsProcessor(ABC):
    """A processor with state by slot. Slots are used again and nothing reports a request's end, so `add_request` must
    set all state of its slot."""

    actions: Actions = OUTSIDE
    """Its verbs, by slots (`req_idx`), valid in all its methods of a step; vLLM has none."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:  # noqa: B027 - optional
        """Sets up state."""

    @classmethod  # noqa: B027 - most refuse nothing
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for parameters that cannot be served; runs when a request arrives."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:  # noqa: ARG002 - contract
        """Sets the state of a slot for its new request; returns False if `apply` will not change the request's row."""
        return True

    def apply_staged_writes(self) -> None:  # noqa: B027 - optional
        """Moves what `add_request` wrote on the host to the device; called once before each step that samples."""

    @abstractmethod
    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        """Returns the changed logits [rows, vocab_size] float32; may change them in place.

        All rows of the step are present, declined requests (`add_request` returned False) included. It is not called in
        a step with declined requests alone.
        """
