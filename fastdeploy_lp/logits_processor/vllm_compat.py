"""Stand-ins for the vLLM modules that third-party processor packages import, for `--vllm-compat` without vLLM."""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import ModuleType

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.sampling_params import SamplingParams


class TorchLogitsProcessor(vllm_v1.LogitsProcessor):
    """The base class under vLLM's own name: its subclasses expect torch tensors."""


class TorchAdapterLogitsProcessor(vllm_v1.AdapterLogitsProcessor, TorchLogitsProcessor):
    """The request-level adapter under vLLM's own name."""


def install() -> None:
    """Make `import vllm.config`, `vllm.sampling_params`, `vllm.logger` and `vllm.v1.sample.logits_processor` work.

    Does nothing where vLLM itself is installed, and nothing the second time.
    """
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        return
    interface = {
        "LogitsProcessor": TorchLogitsProcessor,
        "AdapterLogitsProcessor": TorchAdapterLogitsProcessor,
        "BatchUpdate": vllm_v1.BatchUpdate,
        "MoveDirectionality": vllm_v1.MoveDirectionality,
        "RequestLogitsProcessor": vllm_v1.RequestLogitsProcessor,
    }
    contents: dict[str, dict[str, object]] = {
        "vllm": {"SamplingParams": SamplingParams},
        "vllm.config": {"VllmConfig": vllm_v1.VllmConfig},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.sampling_params": {"SamplingParams": SamplingParams},
        "vllm.v1": {},
        "vllm.v1.sample": {},
        "vllm.v1.sample.logits_processor": interface,
        "vllm.v1.sample.logits_processor.interface": interface,
    }
    for name, attributes in contents.items():
        module = ModuleType(name, "A stand-in by fastdeploy_lp.")
        module.__path__ = []
        vars(module).update(attributes)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
