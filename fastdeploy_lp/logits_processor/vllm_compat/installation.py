"""Installation of the stand-in modules under vLLM's names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HERE = "fastdeploy_lp.logits_processor.vllm_compat"
_V1 = "fastdeploy_lp.logits_processor.vllm_v1"
_MRV2 = "fastdeploy_lp.logits_processor.vllm_mrv2"
_CONFIG = "fastdeploy_lp.logits_processor.vllm_config"
_ENGINE = "fastdeploy_lp.entrypoints.vllm_engine"


def _at(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_INTERFACE = {
    **_at(f"{_HERE}.batch", "AdapterLogitsProcessor", "LogitsProcessor"),
    **_at(_V1, "AddedRequest", "BatchUpdate", "MovedRequest", "MoveDirectionality", "RemovedRequest"),
}
_STATE = _at(f"{_HERE}.batch", "BatchUpdateBuilder", "LogitsProcessors")
_BUILTIN = _at(
    f"{_HERE}.builtin",
    *("LogitBiasLogitsProcessor", "MinPLogitsProcessor", "MinTokensLogitsProcessor", "process_dict_updates"),
)
_BUILD = _at(
    f"{_HERE}.build",
    *("BUILTIN_LOGITS_PROCESSORS", "LOGITSPROCS_GROUP", "build_logitsprocs"),
    *("STR_POOLING_REJECTS_LOGITSPROCS", "STR_SPEC_DEC_REJECTS_LOGITSPROCS"),
)
_SLOT_KEYED = {
    **_at(f"{_HERE}.slot_keyed", "LogitsProcessor"),
    **_at(_MRV2, "LogitsContext", "LogitsProcRequestState"),
}
_SLOT_LOADER = _at(
    f"{_HERE}.slot_keyed",
    *("build_custom_logits_processors", "build_custom_logits_processors_params_validator"),
)
_CONFIGS = {
    "CacheConfig": "fastdeploy_lp.config:CacheConfig",
    "ModelConfig": f"{_CONFIG}:VllmModelConfig",
    "ParallelConfig": "fastdeploy_lp.config:ParallelConfig",
    "SchedulerConfig": f"{_CONFIG}:VllmSchedulerConfig",
    **_at(_CONFIG, "VllmConfig", "get_current_vllm_config", "set_current_vllm_config"),
}
_SAMPLING = {
    **_at(f"{_HERE}.requests", "SamplingParams", "StructuredOutputsParams"),
    "GuidedDecodingParams": "fastdeploy_lp.request.guided_decoding:GuidedDecodingParams",
    "RequestOutputKind": "fastdeploy_lp.request.sampling_params:RequestOutputKind",
}
_OUTPUTS = {
    "CompletionOutput": "fastdeploy_lp.request.outputs:CompletionOutput",
    "RequestOutput": f"{_ENGINE}:RequestOutput",
}
_INPUTS = _at(f"{_HERE}.requests", "PromptType", "TextPrompt", "TokensPrompt")
_ARGS = _at(_ENGINE, "AsyncEngineArgs", "EngineArgs")
_TOKENIZERS = _at(f"{_HERE}.tokenizer", "TokenizerLike", "cached_tokenizer_from_config", "get_tokenizer")
_PLATFORM = _at(f"{_HERE}.platform", "Platform", "current_platform")

# Parents before their children.
CONTENTS: dict[str, dict[str, str]] = {
    "vllm": {
        **_at(f"{_HERE}.utils", "__version__", "__version_tuple__"),
        "LLM": f"{_ENGINE}:LLM",
        "AsyncLLMEngine": f"{_ENGINE}:AsyncLLM",
        "PoolingParams": "fastdeploy_lp.request.pooling_params:PoolingParams",
        "SamplingParams": _SAMPLING["SamplingParams"],
        **_ARGS,
        **_INPUTS,
        **_OUTPUTS,
    },
    "vllm.config": _CONFIGS,
    "vllm.config.model": {"ModelConfig": _CONFIGS["ModelConfig"]},
    "vllm.config.scheduler": {"SchedulerConfig": _CONFIGS["SchedulerConfig"]},
    "vllm.config.vllm": _at(_CONFIG, "VllmConfig", "get_current_vllm_config", "set_current_vllm_config"),
    "vllm.engine": {},
    "vllm.engine.arg_utils": _ARGS,
    "vllm.engine.async_llm_engine": {"AsyncLLMEngine": f"{_ENGINE}:AsyncLLM"},
    "vllm.entrypoints": {},
    "vllm.entrypoints.llm": {"LLM": f"{_ENGINE}:LLM"},
    "vllm.exceptions": _at(
        f"{_HERE}.requests",
        *("VLLMClientError", "VLLMError", "VLLMNotFoundError", "VLLMServerError"),
        *("VLLMUnprocessableEntityError", "VLLMValidationError"),
    ),
    "vllm.inputs": _INPUTS,
    "vllm.logger": _at(f"{_HERE}.utils", "init_logger"),
    "vllm.logits_process": {"LogitsProcessor": f"{_V1}:RequestLogitsProcessor"},
    "vllm.outputs": _OUTPUTS,
    "vllm.platforms": _PLATFORM,
    "vllm.platforms.interface": {"Platform": _PLATFORM["Platform"]},
    "vllm.pooling_params": {"PoolingParams": "fastdeploy_lp.request.pooling_params:PoolingParams"},
    "vllm.sampling_params": _SAMPLING,
    "vllm.tokenizers": {**_TOKENIZERS, "cached_get_tokenizer": f"{_HERE}.tokenizer:get_tokenizer"},
    "vllm.transformers_utils": {},
    "vllm.transformers_utils.tokenizer": {
        **_TOKENIZERS,
        "AnyTokenizer": f"{_HERE}.tokenizer:TokenizerLike",
        "cached_get_tokenizer": f"{_HERE}.tokenizer:get_tokenizer",
    },
    "vllm.utils": _at(f"{_HERE}.utils", "cdiv", "is_pin_memory_available", "random_uuid", "resolve_obj_by_qualname"),
    "vllm.utils.gpu_sync_debug": _at(f"{_HERE}.utils", "gpu_sync_allowed"),
    "vllm.utils.import_utils": _at(f"{_HERE}.utils", "resolve_obj_by_qualname"),
    "vllm.utils.math_utils": _at(f"{_HERE}.utils", "cdiv"),
    "vllm.utils.platform_utils": _at(f"{_HERE}.utils", "is_pin_memory_available"),
    "vllm.utils.torch_utils": _at(f"{_HERE}.utils", "async_tensor_h2d", "guard_cuda_initialization"),
    "vllm.v1": {},
    "vllm.v1.engine": {},
    "vllm.v1.engine.async_llm": {"AsyncLLM": f"{_ENGINE}:AsyncLLM"},
    "vllm.v1.sample": {},
    "vllm.v1.sample.logits_processor": {
        **_INTERFACE,
        **_STATE,
        **_BUILTIN,
        **_BUILD,
        "RequestLogitsProcessor": f"{_V1}:RequestLogitsProcessor",
    },
    "vllm.v1.sample.logits_processor.builtin": _BUILTIN,
    "vllm.v1.sample.logits_processor.interface": _INTERFACE,
    "vllm.v1.sample.logits_processor.state": _STATE,
    "vllm.v1.sample.metadata": _at(f"{_HERE}.batch", "SamplingMetadata"),
    "vllm.v1.worker": {},
    "vllm.v1.worker.gpu": {},
    "vllm.v1.worker.gpu.buffer_utils": _at(f"{_HERE}.buffers", "StagedWriteTensor", "UvaBackedTensor"),
    "vllm.v1.worker.gpu.sample": {},
    "vllm.v1.worker.gpu.sample.logits_processor": {**_SLOT_KEYED, **_SLOT_LOADER},
    "vllm.v1.worker.gpu.sample.logits_processor.interface": _SLOT_KEYED,
    "vllm.v1.worker.gpu.sample.logits_processor.loader": {
        **_at(f"{_HERE}.slot_keyed", "LOGITSPROCS_GROUP", "LogitsProcessor", "entry_points"),
        **_at(_MRV2, "LogitsProcRequestState"),
        **_SLOT_LOADER,
        "_cached_load_v2_logitsprocs": f"{_HERE}.slot_keyed:load_once",
    },
    "vllm.version": _at(f"{_HERE}.utils", "__version__", "__version_tuple__"),
}


TOP = "vllm"


class StandIn(ModuleType):
    """A module that loads each name at its first use, since most need torch or the engine."""

    def __init__(self, name: str, homes: Mapping[str, str]) -> None:
        super().__init__(name, f"A stand-in for vLLM's module {name} by fastdeploy_lp.")
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__all__ = sorted(homes)
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        """Returns the object of a name; raises AttributeError for a name without a stand-in."""
        home = self.__dict__.get("_homes", {}).get(name)
        if home is None:
            raise AttributeError(f"{self.__name__}.{name} has no stand-in (--vllm-compat); it needs vLLM itself")
        module, _, attribute = home.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        """Returns every name, loaded or not."""
        return sorted({*super().__dir__(), *self.__all__})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the module by name, so that a class from a program's `__main__` can refer to it in the worker."""
        return importlib.import_module, (self.__name__,)


def install() -> None:
    """Installs the stand-ins in `contents.py` under vLLM's module names.

    Does nothing if vLLM itself is installed, or on a second call.
    """
    if TOP in sys.modules or _vllm_is_installed():
        return
    for name, homes in CONTENTS.items():
        module = StandIn(name, homes)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def stand_ins_are_installed() -> bool:
    """Returns True if `import vllm` loads a stand-in in this process."""
    return isinstance(sys.modules.get(TOP), StandIn)


def _vllm_is_installed() -> bool:
    # A folder named vllm in the working directory is a namespace package, which has no file.
    spec = importlib.util.find_spec(TOP)
    return spec is not None and spec.origin is not None
