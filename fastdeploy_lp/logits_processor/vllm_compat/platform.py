"""vLLM's description of the device, as processors ask it."""

from __future__ import annotations

from collections.abc import Callable

from fastdeploy_lp.logits_processor.dialects.torch_bridge import torch_device


class Platform:
    """The device on which processors written for torch work."""

    @property
    def device_type(self) -> str:
        """torch's name of it."""
        return str(torch_device().type)

    @property
    def device_name(self) -> str:
        """The same for people."""
        return self.device_type

    def device_count(self) -> int:
        """Devices of this kind that a processor sees."""
        return 1

    def is_cuda_alike(self) -> bool:
        """True on a device of CUDA or ROCm."""
        return bool(self.is_cuda() or self.is_rocm())

    def is_pin_memory_available(self) -> bool:
        """False: see `VllmV1Dialect.build`."""
        return False

    def __getattr__(self, name: str) -> Callable[[], bool]:
        """`is_cuda`, `is_cpu` and the like; raises AttributeError for any other name."""
        question, _, device = name.partition("is_")
        if question or not device:
            raise AttributeError(f"current_platform.{name} has no stand-in (--vllm-compat)")
        return lambda: device == self.device_type


current_platform = Platform()
