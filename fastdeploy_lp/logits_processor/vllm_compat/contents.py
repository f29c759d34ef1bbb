"""The names of each stand-in module, with the object of each as "module:attribute"."""

from __future__ import annotations

_HERE = "fastdeploy_lp.logits_processor.vllm_compat"
_V1 = "fastdeploy_lp.logits_processor.vllm_v1"
_CONFIG = "fastdeploy_lp.logits_processor.vllm_config"
_ENGINE = "fastdeploy_lp.entrypoints.vllm_engine"


def _at(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_INTERFACE = {
    **_at(f"{_HERE}.interface", "AdapterLogitsProcessor", "LogitsProcessor"),
    **_at(_V1, "AddedRequest", "BatchUpdate", "MovedRequest", "MoveDirectionality", "RemovedRequest"),
}
_STATE = _at(f"{_HERE}.state", "BatchUpdateBuilder", "LogitsProcessors")
_BUILTIN = _at(
    f"{_HERE}.builtin",
    *("LogitBiasLogitsProcessor", "MinPLogitsProcessor", "MinTokensLogitsProcessor", "process_dict_updates"),
)
_BUILD = _at(
    f"{_HERE}.build",
    *("BUILTIN_LOGITS_PROCESSORS", "LOGITSPROCS_GROUP", "build_logitsprocs"),
    *("STR_POOLING_REJECTS_LOGITSPROCS", "STR_SPEC_DEC_REJECTS_LOGITSPROCS"),
)
_CONFIGS = {
    "CacheConfig": "fastdeploy_lp.config:CacheConfig",
    "ModelConfig": f"{_CONFIG}:VllmModelConfig",
    "ParallelConfig": "fastdeploy_lp.config:ParallelConfig",
    "SchedulerConfig": f"{_CONFIG}:VllmSchedulerConfig",
    **_at(_CONFIG, "VllmConfig", "get_current_vllm_config", "set_current_vllm_config"),
}
_SAMPLING = {
    **_at(f"{_HERE}.sampling_params", "SamplingParams", "StructuredOutputsParams"),
    "GuidedDecodingParams": "fastdeploy_lp.guided_decoding.params:GuidedDecodingParams",
    "RequestOutputKind": "fastdeploy_lp.sampling_params:RequestOutputKind",
}
_OUTPUTS = {
    "CompletionOutput": "fastdeploy_lp.outputs:CompletionOutput",
    "RequestOutput": f"{_ENGINE}:RequestOutput",
}
_INPUTS = _at(f"{_HERE}.inputs", "PromptType", "TextPrompt", "TokensPrompt")
_ARGS = _at(_ENGINE, "AsyncEngineArgs", "EngineArgs")
_TOKENIZERS = _at(f"{_HERE}.tokenizer", "TokenizerLike", "cached_tokenizer_from_config", "get_tokenizer")
_PLATFORM = _at(f"{_HERE}.platform", "Platform", "current_platform")

# Parents before their children.
CONTENTS: dict[str, dict[str, str]] = {
    "vllm": {
        **_at(f"{_HERE}.version", "__version__", "__version_tuple__"),
        "LLM": f"{_ENGINE}:LLM",
        "AsyncLLMEngine": f"{_ENGINE}:AsyncLLM",
        "PoolingParams": "fastdeploy_lp.pooling_params:PoolingParams",
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
        f"{_HERE}.exceptions",
        *("VLLMClientError", "VLLMError", "VLLMNotFoundError", "VLLMServerError"),
        *("VLLMUnprocessableEntityError", "VLLMValidationError"),
    ),
    "vllm.inputs": _INPUTS,
    "vllm.logger": _at(f"{_HERE}.logger", "init_logger"),
    "vllm.logits_process": {"LogitsProcessor": f"{_V1}:RequestLogitsProcessor"},
    "vllm.outputs": _OUTPUTS,
    "vllm.platforms": _PLATFORM,
    "vllm.platforms.interface": {"Platform": _PLATFORM["Platform"]},
    "vllm.pooling_params": {"PoolingParams": "fastdeploy_lp.pooling_params:PoolingParams"},
    "vllm.sampling_params": _SAMPLING,
    "vllm.tokenizers": {**_TOKENIZERS, "cached_get_tokenizer": f"{_HERE}.tokenizer:get_tokenizer"},
    "vllm.transformers_utils": {},
    "vllm.transformers_utils.tokenizer": {
        **_TOKENIZERS,
        "AnyTokenizer": f"{_HERE}.tokenizer:TokenizerLike",
        "cached_get_tokenizer": f"{_HERE}.tokenizer:get_tokenizer",
    },
    "vllm.utils": _at(f"{_HERE}.utils", "cdiv", "is_pin_memory_available", "random_uuid", "resolve_obj_by_qualname"),
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
    "vllm.v1.sample.metadata": _at(f"{_HERE}.metadata", "SamplingMetadata"),
    "vllm.version": _at(f"{_HERE}.version", "__version__", "__version_tuple__"),
}
