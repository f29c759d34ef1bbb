"""The structured configuration that an engine's flat options come to on a model and a platform."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastdeploy_lp.checkpoint import ModelFiles, read_limits, recommended_sampling, resolve_model
from fastdeploy_lp.config import (
    CacheConfig,
    ChatConfig,
    DeviceConfig,
    FDConfig,
    GuidedDecodingConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    SupervisionConfig,
)
from fastdeploy_lp.config.option_values import settle_part
from fastdeploy_lp.config.tensor_parallel import require_divisible
from fastdeploy_lp.platforms import Platform, current_platform
from fastdeploy_lp.startup.cache_size import settle_num_blocks
from fastdeploy_lp.startup.draft_model import find_draft_model

if TYPE_CHECKING:
    from fastdeploy_lp.startup.engine_args import EngineArgs

DEFAULT_MAX_MODEL_LEN = 2048


def settled_config(args: EngineArgs, *, show_progress: bool = True) -> FDConfig:
    """See `EngineArgs.create_fd_config`."""
    files = resolve_model(args.model, show_progress=show_progress, need_tokenizer=not args.skip_tokenizer_init)
    settled = settled_by(current_platform(), _fd_config(args, files))
    require_divisible(settled.model_config.hf_config, settled.parallel_config.tensor_parallel_size)
    draft = find_draft_model(settled, show_progress=show_progress)
    if draft is None:
        return replace(settled, cache_config=_with_blocks(args, files, settled))
    cache = _with_blocks(args, files, settled, draft.files)
    return replace(settled, cache_config=cache, draft_model_config=draft.config)


def settled_by(platform: Platform, fd_config: FDConfig) -> FDConfig:
    """The configuration that `check_and_update_config` of the platform makes of this one, under the platform's name.

    Raises ValueError when it gives no configuration back.
    """
    settled = platform.check_and_update_config(fd_config)
    if not isinstance(settled, FDConfig):
        given = type(settled).__name__
        raise ValueError(
            f"platform {platform.name}: check_and_update_config returned {given}; it must return the FDConfig"
        )
    return replace(settled, device_config=replace(settled.device_config, platform=platform.name))


def _fd_config(args: EngineArgs, files: ModelFiles) -> FDConfig:
    limits = read_limits(files)
    return FDConfig(
        model_config=settle_part(
            ModelConfig,
            args,
            model=args.model,
            directory=str(files.directory),
            served_model_name=args.served_names[0],
            other_served_names=args.served_names[1:],
            vocab_size=limits.vocab_size,
            max_model_len=_max_model_len(args, limits.max_model_len),
            eos_token_ids=limits.eos_token_ids,
            dtype=_dtype(args),
            hf_config=files.config,
            model_sampling=recommended_sampling(args.model),
        ),
        scheduler_config=_scheduler_config(args),
        cache_config=settle_part(
            CacheConfig,
            args,
            block_size=args.block_size or current_platform().default_block_size,
            num_blocks=0,
            dtype=_kv_cache_dtype(args),
        ),
        parallel_config=settle_part(ParallelConfig, args),
        structured_outputs_config=settle_part(StructuredOutputsConfig, args),
        chat_config=settle_part(ChatConfig, args),
        guided_decoding_config=settle_part(GuidedDecodingConfig, args),
        supervision_config=settle_part(SupervisionConfig, args),
        observability_config=settle_part(ObservabilityConfig, args),
        device_config=settle_part(DeviceConfig, args),
    )


def _with_blocks(
    args: EngineArgs, files: ModelFiles, settled: FDConfig, draft: ModelFiles | None = None
) -> CacheConfig:
    cache = settled.cache_config
    num_blocks = settle_num_blocks(
        files,
        block_size=cache.block_size,
        max_model_len=settled.model_config.max_model_len,
        max_num_seqs=settled.scheduler_config.max_num_seqs,
        dtype=cache.dtype,
        override=cache.num_blocks or args.num_gpu_blocks_override,
        memory_share=args.gpu_memory_utilization,
        ranks=settled.parallel_config.tensor_parallel_size,
        workers=settled.parallel_config.data_parallel_size,
        draft=draft,
    )
    return replace(cache, num_blocks=num_blocks)


def _scheduler_config(args: EngineArgs) -> SchedulerConfig:
    tokens = args.max_num_batched_tokens or current_platform().default_max_num_batched_tokens
    return replace(settle_part(SchedulerConfig, args), max_num_batched_tokens=tokens)


def _kv_cache_dtype(args: EngineArgs) -> str:
    if args.kv_cache_dtype != "auto":
        return args.kv_cache_dtype
    platform = current_platform()
    rounds = _dtype(args) != platform.model_dtype
    return "float16" if rounds else platform.kv_cache_dtype(args.quantization)


def _dtype(args: EngineArgs) -> str:
    """The platform's type, or bfloat16 where operators compute in float32 and can round to it."""
    platform = current_platform()
    if args.dtype in ("auto", platform.model_dtype):
        return platform.model_dtype
    if args.dtype != "bfloat16" or platform.model_dtype != "float32":
        allowed = (
            "auto, float32 and bfloat16" if platform.model_dtype == "float32" else f"auto and {platform.model_dtype}"
        )
        raise ValueError(f"dtype: {args.dtype} is not allowed on the platform {platform.name}; allowed are {allowed}")
    if args.quantization is not None:
        raise ValueError("dtype: bfloat16 is not allowed with quantization, which rounds weights itself; leave one out")
    return args.dtype


def _max_model_len(args: EngineArgs, model_limit: int) -> int:
    if args.max_model_len is None:
        return min(model_limit, DEFAULT_MAX_MODEL_LEN)
    if args.max_model_len > model_limit:
        raise ValueError(f"max_model_len: {args.max_model_len} is more than the model's own {model_limit}")
    return args.max_model_len
