"""vLLM's function that builds all processors at once, for packages' tests; the engine does not use it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fastdeploy_lp.logits_processor.vllm_compat.batch import LogitsProcessor, LogitsProcessors
from fastdeploy_lp.logits_processor.vllm_compat.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig
from fastdeploy_lp.plugins import PluginGroup, load_group

LOGITSPROCS_GROUP = PluginGroup.VLLM_LOGITS_PROCESSOR.value
STR_POOLING_REJECTS_LOGITSPROCS = "a pooling model takes no custom logits processors"
STR_SPEC_DEC_REJECTS_LOGITSPROCS = "speculative decoding takes no custom logits processors"
BUILTIN_LOGITS_PROCESSORS: list[type[LogitsProcessor]] = [
    MinTokensLogitsProcessor,
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
]


def build_logitsprocs(
    vllm_config: VllmConfig,
    device: Any,
    is_pin_memory: bool,
    is_pooling_model: bool,
    custom_logitsprocs: Sequence[str | type] = (),
) -> LogitsProcessors:
    """Returns the builtins, the installed entry points and `custom_logitsprocs`, in this order.

    `custom_logitsprocs` are classes or "module:Class". Raises ValueError for custom processors of a pooling model or
    with speculative decoding, and for a custom processor that is not one.
    """
    refusal = STR_POOLING_REJECTS_LOGITSPROCS if is_pooling_model else STR_SPEC_DEC_REJECTS_LOGITSPROCS
    if is_pooling_model or vllm_config.speculative_config:
        if custom_logitsprocs:
            raise ValueError(refusal)
        alone = [] if is_pooling_model else [MinTokensLogitsProcessor(vllm_config, device, is_pin_memory)]
        return LogitsProcessors(alone)
    installed = [loaded.found for loaded in load_group(PluginGroup.VLLM_LOGITS_PROCESSOR)]
    custom = [_class_of(given) for given in custom_logitsprocs]
    classes: list[Any] = [*BUILTIN_LOGITS_PROCESSORS, *installed, *custom]
    return LogitsProcessors(cls(vllm_config, device, is_pin_memory) for cls in classes)


def _class_of(given: str | type) -> type:
    found: Any = given
    if isinstance(given, str):
        module, _, names = given.partition(":")
        found = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    if not isinstance(found, type) or not issubclass(found, LogitsProcessor):
        raise ValueError(f"{given!r} is no subclass of vllm.v1.sample.logits_processor.LogitsProcessor")
    return found
