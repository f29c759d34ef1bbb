"""vLLM V1 processors written for torch, on the classes of an installed vLLM or on their stand-ins."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.dialects.batch_tracker import OWN, BatchInterface, BatchTracker
from fastdeploy_lp.logits_processor.dialects.torch_bridge import beside_paddle, to_paddle, to_torch, torch_device
from fastdeploy_lp.logits_processor.dialects.vllm import CONSTRUCTOR, VllmV1Processor
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig, set_current_vllm_config

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
    from fastdeploy_lp.request.sampling_params import SamplingParams

INTERFACE_MODULE = "vllm.v1.sample.logits_processor"
ERRORS_MODULE = "vllm.exceptions"


@contextmanager
def refusals_as_value_errors() -> Iterator[None]:
    """Turns vLLM's own request error in the block, which may be no ValueError, into one."""
    try:
        yield
    except Exception as error:
        refusal = getattr(sys.modules.get(ERRORS_MODULE), "VLLMClientError", None)
        if refusal is None or not isinstance(error, refusal):
            raise
        raise ValueError(str(error)) from error


def torch_config(fd_config: FDConfig) -> VllmConfig:
    """Returns the configuration under vLLM's names, with a `torch.dtype`."""
    import torch

    config = VllmConfig.from_fd_config(fd_config)
    model = dataclasses.replace(config.model_config, dtype=getattr(torch, fd_config.model_config.dtype))
    return dataclasses.replace(config, model_config=model)


class TorchVllmDialect(Dialect):
    """Runs subclasses of `vllm.v1.sample.logits_processor.LogitsProcessor` on torch views of the logits."""

    name = "torch"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of the `LogitsProcessor` under vLLM's module name in this process."""
        base = getattr(sys.modules.get(INTERFACE_MODULE), "LogitsProcessor", None)
        return base is not None and isinstance(found, type) and issubclass(found, base)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for missing methods or another constructor."""
        require_methods(found, spec, "vLLM V1 LogitsProcessor", CONSTRUCTOR)

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:
        """Validates as the base class does; turns vLLM's own request error into a ValueError."""
        with refusals_as_value_errors():
            super().validate(found, sampling_params, facts)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns an instance that works on torch tensors; it gets updates of the classes of vLLM's module."""
        with set_current_vllm_config(torch_config(fd_config)) as config, beside_paddle():
            processor = found(config, torch_device(), False)
        eos_token_ids = fd_config.model_config.eos_token_ids
        if _is_vllms_adapter(processor):
            return TorchVllmProcessor(_AdapterRows(processor), BatchTracker(OWN, eos_token_ids), processor)
        interface = BatchInterface.of(sys.modules[INTERFACE_MODULE])
        return TorchVllmProcessor(processor, BatchTracker(interface, eos_token_ids))


class TorchVllmProcessor(VllmV1Processor):
    """Native wrapper of a vLLM processor written for torch."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Passes on the changes, None if there are none."""
        with beside_paddle():
            super().update_state(share_inputs)

    def apply(self, logits: Tensor) -> Tensor:
        """Runs the processor on a torch view of the logits; its result may be in place or out of place."""
        with beside_paddle():
            return to_paddle(self._processor.apply(to_torch(logits)), logits)


def _is_vllms_adapter(processor: Any) -> bool:
    """True if vLLM's own `AdapterLogitsProcessor` manages the rows, and no subclass overrides that."""
    adapter = getattr(sys.modules[INTERFACE_MODULE], "AdapterLogitsProcessor", None)
    if adapter is None or issubclass(adapter, vllm_v1.AdapterLogitsProcessor) or not isinstance(processor, adapter):
        return False
    cls = type(processor)
    inherited = all(getattr(cls, name) is getattr(adapter, name) for name in ("update_state", "apply"))
    return inherited and hasattr(cls, "_new_state")


class _AdapterRows:
    """Runs the callables of vLLM's own adapter, whose `apply` stops at the first callable that raises."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def is_argmax_invariant(self) -> bool:
        """Returns the adapter's claim."""
        return bool(self._adapter.is_argmax_invariant())

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        """Updates the adapter's own table; raises RowErrors for requests whose callable could not be made."""
        vllm_v1.follow_rows(self._adapter.req_info, batch_update, self._adapter._new_state)

    def apply(self, logits: Any) -> Any:
        """Runs each callable on its row; raises RowErrors for the rows that failed."""
        vllm_v1.apply_rows(self._adapter.req_info, logits)
        return logits
