"""vLLM's description of the device, as processors query it."""

from __future__ import annotations

from collections.abc import Callable

from fastdeploy_lp.logits_processor.dialects.torch_bridge import torch_device


class Platform:
    """The device on which processors written for torch run."""

    @property
    def device_type(self) -> str:
        """torch's name of the device."""
        return str(torch_device().type)

    @property
    def device_name(self) -> str:
        """Display name of the device: the same name."""
        return self.device_type

    def device_count(self) -> int:
        """Returns the number of devices of this kind that a processor sees."""
        return 1

    def is_cuda_alike(self) -> bool:
        """Returns True on a CUDA or ROCm device."""
        return bool(self.is_cuda() or self.is_rocm())

    def is_pin_memory_available(self) -> bool:
        """Returns False: see `VllmV1Dialect.build`."""
        return False

    def __getattr__(self, name: str) -> Callable[[], bool]:
        """Returns `is_cuda`, `is_cpu` and similar methods; raises AttributeError for any other name."""
        question, _, device = name.partition("is_")
        if question or not device:
            raise AttributeError(f"current_platform.{name} has no stand-in (--vllm-compat)")
        return lambda: device == self.device_type


current_platform = Platform()
