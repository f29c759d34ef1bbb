"""The platform: the API process uses it before the worker starts, so it does not import Paddle."""

from __future__ import annotations

from dataclasses import replace

from fastdeploy_lp import FDConfig
from fastdeploy_lp.platforms import CpuPlatform


class ExamplePlatform(CpuPlatform):
    """Memory and environment are the CPU's; worker, model runner and attention are this package's."""

    name = "example"
    # The operators of fastdeploy_lp are compiled for CPUs; without them models run on Paddle's and the backend below.
    runs_compiled_ops = False

    @property
    def device_type(self) -> str:
        """Argument of `paddle.set_device`: for a real device the name under which its driver is registered."""
        return "cpu"

    @property
    def device_name(self) -> str:
        """Name of the device in the log."""
        return "the CPU, as an example"

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        """This device has one size of blocks, and its own worker; it cannot quantize."""
        if fd_config.model_config.quantization is not None:
            raise ValueError(f"quantization: {fd_config.model_config.quantization} cannot be had on {self.name}")
        return replace(
            fd_config,
            cache_config=replace(fd_config.cache_config, block_size=8),
            device_config=replace(fd_config.device_config, worker_class="example_platform.worker:ExampleWorker"),
        )

    def get_model_runner_class(self) -> str:
        """The class that runs steps."""
        return "example_platform.worker:ExampleModelRunner"

    def get_attention_backend(self) -> str:
        """The class that stores keys and values and computes attention."""
        return "example_platform.attention:LoopAttentionBackend"
