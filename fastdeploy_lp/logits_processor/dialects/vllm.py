"""vLLM's V1 dialect: batch-level processors that receive the batch's changes as `BatchUpdate`s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.actions import Actions, RowActions, give_actions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.dialects.batch_tracker import BatchTracker
from fastdeploy_lp.logits_processor.vllm_config import set_current_vllm_config
from fastdeploy_lp.platforms import current_platform

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

CONSTRUCTOR = ("vllm_config", "device", "is_pin_memory")


class VllmV1Dialect(Dialect):
    """Runs subclasses of `fastdeploy_lp.logits_processor.vllm_v1.LogitsProcessor` on Paddle tensors."""

    name = "vllm-v1"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of the interface class."""
        return isinstance(found, type) and issubclass(found, vllm_v1.LogitsProcessor)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for missing methods or another constructor."""
        require_methods(found, spec, "vLLM V1 LogitsProcessor", CONSTRUCTOR)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns an instance in a `VllmV1Processor`."""
        # `is_pin_memory` is False: Paddle has no pinned memory without a GPU build.
        with set_current_vllm_config(vllm_v1.VllmConfig.from_fd_config(fd_config)) as config:
            processor = found(config, current_platform().device_type, False)
        return VllmV1Processor(processor, BatchTracker(eos_token_ids=fd_config.model_config.eos_token_ids))


class VllmV1Processor(LogitsProcessor):
    """Native wrapper of a vLLM processor.

    author: the object whose class an author wrote, if it is not the processor itself.
    """

    def __init__(self, processor: Any, batch: BatchTracker, author: Any = None) -> None:
        self._processor = processor
        self._author = processor if author is None else author
        self._batch = batch
        self._rows: RowActions | None = None
        self._argmax_invariant = bool(processor.is_argmax_invariant())

    def is_argmax_invariant(self) -> bool:
        """Returns the processor's claim at start."""
        return self._argmax_invariant

    def use_actions(self, actions: Actions) -> None:
        """Passes the verbs on, by rows."""
        self._rows = RowActions(actions)
        give_actions(self._author, self._rows)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Passes on the changes, None if there are none."""
        if self._rows is not None:
            self._rows.bind(share_inputs["stop_flags"])
        self._processor.update_state(self._batch.update(share_inputs))

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the processor's result."""
        result: Tensor = self._processor.apply(logits)
        return result
