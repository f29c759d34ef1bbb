"""The options of the engine: one flat form that the command line, a YAML file and `LLM(...)` keyword arguments share.

Most are declared where they are read, as fields of the parts of `FDConfig`; here are those whose value depends on the
model or the platform. `settled_config.py` makes the structured form of them. Imports no Paddle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.config.fd_config import (
    CacheConfig,
    ChatConfig,
    DeviceConfig,
    FDConfig,
    GuidedDecodingConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    SupervisionConfig,
)
from fastdeploy_lp.config.model_config import ModelConfig
from fastdeploy_lp.config.option_values import (
    at_least,
    check_options,
    option,
    require_names,
    require_port,
    spec_of,
    with_options_of,
)
from fastdeploy_lp.startup.settled_config import DEFAULT_MAX_MODEL_LEN, settled_config

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "float32", "float16")


def _require_served_names(name: str, value: object) -> None:
    names = [value] if isinstance(value, str) else value
    require_names(name, names)
    if not names or not all(names) or len(set(names)) < len(names):  # type: ignore[arg-type,call-overload]
        raise ValueError(f"{name}: must be one or more different names, not {value!r}")


@dataclass
@with_options_of(
    ModelConfig,
    StructuredOutputsConfig,
    SchedulerConfig,
    CacheConfig,
    ChatConfig,
    GuidedDecodingConfig,
    ParallelConfig,
    SupervisionConfig,
    ObservabilityConfig,
    DeviceConfig,
)
class EngineArgs:
    """Flat engine options: `--max-num-seqs 8`, `max-num-seqs: 8` in YAML and `LLM(max_num_seqs=8)` all land here."""

    model: str = option(group="Model", help="model directory, GGUF file, name in Hugging Face's cache, or smollm2-135m")
    served_model_name: list[str] | str | None = option(
        None,
        group="Model",
        help="names in the API, the first of which answers report (default: the --model value)",
        metavar="NAME",
        check=_require_served_names,
    )
    max_model_len: int | None = option(
        None,
        group="Model",
        help=f"tokens of prompt plus output (default: the model's own, at most {DEFAULT_MAX_MODEL_LEN})",
        check=at_least(1),
    )
    dtype: str = option(
        "auto",
        group="Model",
        help="what weights and activations of matrix products are rounded to; auto is float32, on a GPU bfloat16",
        choices=DTYPES,
    )
    block_size: int | None = option(
        None,
        group="KV cache",
        help="tokens in one block of the KV cache (default: 16; on a GPU 64)",
        check=at_least(1),
    )
    num_gpu_blocks_override: int | None = option(
        None,
        group="KV cache",
        help="blocks of the KV cache (default: all slots at full length, or as many as the memory share holds)",
        check=at_least(1),
    )
    kv_cache_dtype: str = option(
        "auto",
        group="KV cache",
        help="element type of the KV cache; auto is float16 with --quantization or --dtype bfloat16, else float32",
        choices=KV_CACHE_DTYPES,
    )
    io_processor_plugin: str | None = option(
        None,
        group="Plugins",
        help="IO-processor plugin, by its entry point's name, that /pooling and LLM.encode hand data to",
    )

    if TYPE_CHECKING:

        def __init__(self, model: str, **options: Any) -> None: ...

        def __getattr__(self, option: str) -> Any: ...

    def __post_init__(self) -> None:
        given = vars(self)
        given.update({name: _text_of_path(given[name]) for name in ("model", "chat_template")})
        check_options(self)
        given["logits_processors"] = list(self.logits_processors)
        for name in ("engine_worker_queue_port", "cache_queue_port"):
            require_port(name, getattr(self, name), self.data_parallel_size)
        self._require_what_goes_together()

    def _require_what_goes_together(self) -> None:
        if self.skip_tokenizer_init:
            for name in ("chat_template", "tool_call_parser", "reasoning_parser"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: has no text to work on with skip_tokenizer_init")
        if self.tensor_parallel_size > 1 and self.data_parallel_size > 1:
            raise ValueError("data_parallel_size: must be 1 with tensor_parallel_size; run several servers instead")
        if self.guided_decoding_disable_any_whitespace and self.guided_decoding_whitespace == "any":
            raise ValueError("guided_decoding_whitespace: must not be any with guided_decoding_disable_any_whitespace")
        if self.cache_queue_port is not None and not self.enable_prefix_caching:
            raise ValueError("cache_queue_port: without enable_prefix_caching there are no KV-cache events to publish")

    @property
    def served_names(self) -> tuple[str, ...]:
        """The model's names in the API; answers report the first."""
        given = self.served_model_name or self.model
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def processor_specs(self) -> list[str]:
        """The SPECs of the declared logits processors."""
        return [spec_of(given) for given in self.logits_processors]

    def of_a_server(self) -> EngineArgs:
        """Returns the options with a server's default for `on_worker_failure`: restart."""
        changes: dict[str, Any] = {"on_worker_failure": self.on_worker_failure or "restart"}
        return replace(self, **changes)

    def create_fd_config(self, *, show_progress: bool = True) -> FDConfig:
        """Find the model (converting a GGUF file once) and settle every open default, the platform's wishes included.

        Raises CheckpointError (a ValueError) for a model that cannot be used and ValueError for options that do not
        fit it or the platform.
        """
        return settled_config(self, show_progress=show_progress)


AsyncEngineArgs = EngineArgs
"""vLLM's name for the options of `AsyncLLM`."""


def _text_of_path(value: str | None) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
