"""The package's worker: a model on one Paddle device."""

from __future__ import annotations

import paddle

from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import load_class
from fastdeploy_lp.worker.kv_cache_spec import KVCacheSpec
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase
from fastdeploy_lp.worker.worker_base import WorkerBase

MODEL_RUNNERS = {"default": "fastdeploy_lp.worker.model_runner:ModelRunner"}


class Worker(WorkerBase):
    """Runs the configured model runner, or else the platform's, on the platform's device."""

    def init_device(self) -> None:
        """See `WorkerBase.init_device`; raises ValueError for a name that is no model runner."""
        platform = current_platform()
        platform.configure(self.fd_config)
        paddle.set_device(platform.device_type)
        name = self.fd_config.device_config.model_runner_class or platform.get_model_runner_class()
        try:
            found = load_class(MODEL_RUNNERS.get(name, name), ModelRunnerBase)
        except ValueError as error:
            raise ValueError(f"model runner of platform {platform.name}: {error}") from error
        self.model_runner = found(self.fd_config, self.build_chain())

    def load_model(self) -> None:
        """See `WorkerBase.load_model`."""
        self.model_runner.load_model(show_progress=self.show_progress)

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Returns the spec of this package's dense decoders."""
        return KVCacheSpec.of(self.fd_config)

    def determine_available_memory(self) -> int:
        """Returns the bytes of the configured blocks, settled from free memory before this process started."""
        return self.fd_config.cache_config.num_blocks * self.get_kv_cache_spec().bytes_per_block

    def initialize_cache(self, num_blocks: int) -> None:
        """See `WorkerBase.initialize_cache`."""
        self.model_runner.initialize_cache(num_blocks)

    def compile_or_warm_up_model(self) -> None:
        """Warms up the model runner."""
        self.model_runner.warm_up()
