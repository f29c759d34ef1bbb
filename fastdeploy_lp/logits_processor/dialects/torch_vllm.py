"""vLLM V1 processors written for torch: the real ones if vLLM is installed, or those of the stand-in modules."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.dialects.torch_bridge import to_paddle, to_torch
from fastdeploy_lp.logits_processor.dialects.vllm_v1 import CONSTRUCTOR, VllmV1Processor

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

INTERFACE_MODULE = "vllm.v1.sample.logits_processor"


class TorchVllmDialect(Dialect):
    """Runs subclasses of `vllm.v1.sample.logits_processor.LogitsProcessor` on torch views of the logits."""

    name = "torch"

    def recognizes(self, found: Any) -> bool:
        """Subclasses of whatever stands under vLLM's module name in this process."""
        base = getattr(sys.modules.get(INTERFACE_MODULE), "LogitsProcessor", None)
        return base is not None and isinstance(found, type) and issubclass(found, base)

    def check(self, found: Any, spec: str) -> None:
        """Methods and constructor."""
        require_methods(found, spec, "vLLM V1 LogitsProcessor", CONSTRUCTOR)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """An instance that works on torch tensors."""
        import torch

        config = vllm_v1.VllmConfig.from_fd_config(fd_config)
        return TorchVllmProcessor(found(config, torch.device("cpu"), False))


class TorchVllmProcessor(VllmV1Processor):
    """A torch processor as the chain sees it."""

    def apply(self, logits: Tensor) -> Tensor:
        """On a view of the logits; results made in place and out of place both count."""
        return to_paddle(self._processor.apply(to_torch(logits)), logits)
