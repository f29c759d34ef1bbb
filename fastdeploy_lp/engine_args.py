"""The options of the engine: one flat form that the command line, a YAML file and `LLM(...)` keyword arguments share.

`EngineArgs.create_fd_config` reads the model's `config.json` and gives the structured form. Imports no Paddle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastdeploy_lp.cache_size import settle_num_blocks
from fastdeploy_lp.checkpoint import ModelFiles, read_limits, resolve_model
from fastdeploy_lp.config import (
    DEFAULT_GUIDED_CACHE_SIZE,
    DEFAULT_GUIDED_MAX_BYTES,
    DEFAULT_GUIDED_TIMEOUT,
    DEFAULT_LOG_STATS_INTERVAL,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_TRACE_TOKENS,
    DEFAULT_MAX_WAITING_REQUESTS,
    DEFAULT_MAX_WORKER_RESTARTS,
    DEFAULT_MEMORY_BUDGET,
    DEFAULT_POOLING_TYPE,
    DEFAULT_STEP_TIMEOUT,
    CacheConfig,
    ChatConfig,
    FDConfig,
    GuidedDecodingConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    SupervisionConfig,
)
from fastdeploy_lp.platforms import Platform, current_platform
from fastdeploy_lp.pooling_params import POOLING_TYPES
from fastdeploy_lp.tensor_parallel import require_divisible

DEFAULT_MAX_MODEL_LEN = 2048
ON_ERROR = ("fail", "skip", "abort")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
QUANTIZATIONS = ("w8a8", "w8a16")
KV_CACHE_DTYPES = ("auto", "float32", "float16")
ON_WORKER_FAILURE = ("restart", "exit")


@dataclass
class EngineArgs:
    """Flat engine options: `--max-num-seqs 8`, `max-num-seqs: 8` in YAML and `LLM(max_num_seqs=8)` all land here."""

    model: str = field(metadata={"group": "Model", "help": "model directory, GGUF file, or the name smollm2-135m"})
    served_model_name: str | None = field(
        default=None, metadata={"group": "Model", "help": "name in the API (default: the --model value)"}
    )
    skip_tokenizer_init: bool = field(
        default=False,
        metadata={
            "group": "Model",
            "help": "serve token ids alone: read no tokenizer, take prompts as token ids and answer with them",
        },
    )
    logits_processors: list[str | type] = field(
        default_factory=list,
        metadata={
            "group": "Logits processors",
            "help": "logits processors in execution order: builtin class name or module.path:ClassName",
        },
    )
    logits_processors_on_error: str = field(
        default="fail",
        metadata={
            "group": "Logits processors",
            "help": "when a logits processor raises: fail the requests that use it, skip it for the step, or abort",
            "choices": ON_ERROR,
        },
    )
    logits_processors_max_faults: int = field(
        default=5,
        metadata={
            "group": "Logits processors",
            "help": "faults that put a logits processor into quarantine; 0 for never",
        },
    )
    logits_processors_time_budget: float = field(
        default=1.0,
        metadata={
            "group": "Logits processors",
            "help": "seconds of a step that one logits processor may take; 0 for no limit",
        },
    )
    logits_processors_memory_budget: int = field(
        default=DEFAULT_MEMORY_BUDGET,
        metadata={
            "group": "Logits processors",
            "help": "MiB of main memory that a logits processor may take, else it goes into quarantine; 0 for no limit",
        },
    )
    vllm_compat: bool = field(
        default=False,
        metadata={
            "group": "Logits processors",
            "help": "let packages that import vllm's logits-processor modules run without vLLM",
        },
    )
    shadow: list[str] = field(
        default_factory=list,
        metadata={
            "group": "Logits processors",
            "help": "declared logits processors that run on copies only, to count how often they would change a token",
            "metavar": "NAME",
        },
    )
    max_trace_tokens: int = field(
        default=DEFAULT_MAX_TRACE_TOKENS,
        metadata={
            "group": "Logits processors",
            "help": "tokens of one request that may be traced; 0 refuses traces",
        },
    )
    max_model_len: int | None = field(
        default=None,
        metadata={
            "group": "Model",
            "help": f"tokens of prompt plus output (default: the model's own, at most {DEFAULT_MAX_MODEL_LEN})",
        },
    )
    max_num_seqs: int = field(default=32, metadata={"group": "Scheduling", "help": "requests that run at once (slots)"})
    max_num_batched_tokens: int = field(
        default=DEFAULT_MAX_NUM_BATCHED_TOKENS,
        metadata={
            "group": "Scheduling",
            "help": "tokens that one step computes: one a running request, the rest for prompts, cut as needed",
        },
    )
    max_waiting_requests: int = field(
        default=DEFAULT_MAX_WAITING_REQUESTS,
        metadata={
            "group": "Scheduling",
            "help": "requests that may wait for a slot before further ones are refused with status 429",
        },
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata={
            "group": "KV cache",
            "help": "let requests that begin alike share what was computed of their prompts",
        },
    )
    block_size: int | None = field(
        default=None,
        metadata={"group": "KV cache", "help": "tokens in one block of the KV cache (default: 16; on a GPU 64)"},
    )
    num_gpu_blocks_override: int | None = field(
        default=None,
        metadata={
            "group": "KV cache",
            "help": "blocks of the KV cache (default: all slots at full length, or as many as the memory share holds)",
        },
    )
    gpu_memory_utilization: float = field(
        default=0.9,
        metadata={
            "group": "KV cache",
            "help": "share of the device's free memory (on the CPU: main memory) for weights and KV cache",
        },
    )
    logprobs_mode: str = field(
        default="raw_logprobs",
        metadata={
            "group": "Logits processors",
            "help": "what logprobs are: of the model's own logits, or of those after processors, penalties and filters",
            "choices": LOGPROBS_MODES,
        },
    )
    pooling_type: str = field(
        default=DEFAULT_POOLING_TYPE,
        metadata={
            "group": "Model",
            "help": "what an embedding is made of: the mean of all hidden states of the prompt, or the last one",
            "choices": POOLING_TYPES,
        },
    )
    quantization: str | None = field(
        default=None,
        metadata={
            "group": "Model",
            "help": "w8a8: weights and activations in 8 bits; w8a16: activations in 16 bits (default: float32)",
            "choices": QUANTIZATIONS,
        },
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata={
            "group": "KV cache",
            "help": "element type of the KV cache; auto is float16 with --quantization, else float32",
            "choices": KV_CACHE_DTYPES,
        },
    )
    chat_template: str | None = field(
        default=None,
        metadata={
            "group": "Chat",
            "help": "file with a jinja chat template, or the template itself, for the model's own",
        },
    )
    trust_request_chat_template: bool = field(
        default=False,
        metadata={"group": "Chat", "help": "let requests send a chat template of their own, which runs in a sandbox"},
    )
    tool_call_parser: str | None = field(
        default=None,
        metadata={"group": "Chat", "help": "how tool calls are read: hermes (default: what the chat template shows)"},
    )
    enable_auto_tool_choice: bool = field(
        default=True,
        metadata={"group": "Chat", "help": "let the model decide whether to call the tools that a chat request sends"},
    )
    reasoning_parser: str | None = field(
        default=None,
        metadata={
            "group": "Chat",
            "help": "tell reasoning from the answer: deepseek_r1 or qwen3 (default: all of it is the answer)",
        },
    )
    guided_decoding_disable_any_whitespace: bool = field(
        default=False,
        metadata={"group": "Guided decoding", "help": "JSON has no whitespace between its parts"},
    )
    guided_decoding_max_bytes: int = field(
        default=DEFAULT_GUIDED_MAX_BYTES,
        metadata={"group": "Guided decoding", "help": "bytes that a request's schema or grammar may have"},
    )
    guided_decoding_timeout: float = field(
        default=DEFAULT_GUIDED_TIMEOUT,
        metadata={"group": "Guided decoding", "help": "seconds that compiling a request's grammar may take"},
    )
    guided_decoding_cache_size: int = field(
        default=DEFAULT_GUIDED_CACHE_SIZE,
        metadata={"group": "Guided decoding", "help": "compiled grammars that are kept for further requests"},
    )
    engine_worker_queue_port: int | None = field(
        default=None,
        metadata={
            "group": "Processes",
            "help": "loopback TCP port between API process and worker (default: a private unix socket)",
        },
    )
    tensor_parallel_size: int = field(
        default=1,
        metadata={
            "group": "Processes",
            "help": "processes that share the model's weights and KV cache, one a device",
        },
    )
    data_parallel_size: int = field(
        default=1,
        metadata={
            "group": "Processes",
            "help": "workers on this host, each with the whole model and its share of the cores or a GPU of its own",
        },
    )
    on_worker_failure: str | None = field(
        default=None,
        metadata={
            "group": "Processes",
            "help": "when the worker ends or hangs: restart it, or exit (default: restart; exit in LLM and run-batch)",
            "choices": ON_WORKER_FAILURE,
        },
    )
    step_timeout: float = field(
        default=DEFAULT_STEP_TIMEOUT,
        metadata={
            "group": "Processes",
            "help": "seconds that one step may take before the worker counts as hung; 0 for no limit",
        },
    )
    max_worker_restarts: int = field(
        default=DEFAULT_MAX_WORKER_RESTARTS,
        metadata={"group": "Processes", "help": "restarts of the worker within a minute before the server ends"},
    )
    cache_queue_port: int | None = field(
        default=None,
        metadata={"group": "KV cache", "help": "loopback TCP port on which KV-cache events are published (ZeroMQ PUB)"},
    )

    log_stats_interval: float = field(
        default=DEFAULT_LOG_STATS_INTERVAL,
        metadata={
            "group": "Plugins",
            "help": "seconds between two lines of the log on the engine's load; 0 for none",
        },
    )
    io_processor_plugin: str | None = field(
        default=None,
        metadata={
            "group": "Plugins",
            "help": "IO-processor plugin, by its entry point's name, that /pooling and LLM.encode hand data to",
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.logits_processors, (list, tuple)):
            raise ValueError(f"logits_processors: must be a list, not {self.logits_processors!r}")
        for index, spec in enumerate(self.logits_processors):
            if not isinstance(spec, (str, type)):
                raise ValueError(f"logits_processors.{index}: {spec!r} is neither a name nor a class")
        self.logits_processors = list(self.logits_processors)
        _require_one_of("logits_processors_on_error", self.logits_processors_on_error, ON_ERROR)
        _require_one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if self.quantization is not None:
            _require_one_of("quantization", self.quantization, QUANTIZATIONS)
        _require_one_of("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        _require_one_of("pooling_type", self.pooling_type, POOLING_TYPES)
        if self.skip_tokenizer_init:
            for name in ("chat_template", "tool_call_parser", "reasoning_parser"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: has no text to work on with skip_tokenizer_init")
        budgets = ("logits_processors_time_budget", "logits_processors_memory_budget")
        for name in ("logits_processors_max_faults", *budgets):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be 0 or more")
        if self.on_worker_failure is not None:
            _require_one_of("on_worker_failure", self.on_worker_failure, ON_WORKER_FAILURE)
        if not 0 <= self.step_timeout < math.inf:
            raise ValueError(f"step_timeout: {self.step_timeout!r} is not allowed; it must be 0 or more seconds")
        if not 0 <= self.log_stats_interval < float("inf"):
            raise ValueError("log_stats_interval: must be 0 or more seconds")
        if not self.guided_decoding_timeout > 0:
            raise ValueError(f"guided_decoding_timeout: {self.guided_decoding_timeout!r} is not above 0 seconds")
        guided = ("guided_decoding_max_bytes", "guided_decoding_cache_size")
        for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "data_parallel_size", *guided):
            _require_at_least(1, name, getattr(self, name))
        if self.tensor_parallel_size > 1 and self.data_parallel_size > 1:
            raise ValueError("data_parallel_size: must be 1 with tensor_parallel_size; run several servers instead")
        for name in ("max_waiting_requests", "max_worker_restarts", "max_trace_tokens"):
            _require_at_least(0, name, getattr(self, name))
        if not isinstance(self.shadow, (list, tuple)):
            raise ValueError(f"shadow: must be a list of names, not {self.shadow!r}")
        for name in ("block_size", "max_model_len", "num_gpu_blocks_override"):
            if getattr(self, name) is not None:
                _require_at_least(1, name, getattr(self, name))
        if not 0 < self.gpu_memory_utilization <= 1:
            share = self.gpu_memory_utilization
            raise ValueError(f"gpu_memory_utilization: {share!r} is not allowed; it must be above 0 and at most 1")
        for name in ("engine_worker_queue_port", "cache_queue_port"):
            require_port(name, getattr(self, name), self.data_parallel_size)
        if self.cache_queue_port is not None and not self.enable_prefix_caching:
            raise ValueError("cache_queue_port: without enable_prefix_caching there are no KV-cache events to publish")

    def create_fd_config(self, *, show_progress: bool = True) -> FDConfig:
        """Find the model (converting a GGUF file once) and settle every open default, the platform's wishes included.

        Raises CheckpointError (a ValueError) for a model that cannot be used and ValueError for options that do not
        fit it or the platform.
        """
        need_tokenizer = not self.skip_tokenizer_init
        files = resolve_model(self.model, show_progress=show_progress, need_tokenizer=need_tokenizer)
        settled = settled_by(current_platform(), self._fd_config(files))
        require_divisible(settled.model_config.hf_config, settled.parallel_config.tensor_parallel_size)
        return replace(settled, cache_config=self._with_blocks(files, settled))

    def _fd_config(self, files: ModelFiles) -> FDConfig:
        limits = read_limits(files)
        max_model_len = self._settle_max_model_len(limits.max_model_len)
        return FDConfig(
            model_config=ModelConfig(
                model=self.model,
                directory=str(files.directory),
                served_model_name=self.served_model_name or self.model,
                vocab_size=limits.vocab_size,
                max_model_len=max_model_len,
                eos_token_ids=limits.eos_token_ids,
                dtype=current_platform().model_dtype,
                quantization=self.quantization,
                hf_config=files.config,
                logprobs_mode=self.logprobs_mode,
                pooling_type=self.pooling_type,
                skip_tokenizer_init=self.skip_tokenizer_init,
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_waiting_requests=self.max_waiting_requests,
            ),
            cache_config=CacheConfig(
                self.block_size or current_platform().default_block_size,
                num_blocks=0,
                cache_queue_port=self.cache_queue_port,
                dtype=self._settle_kv_cache_dtype(),
                enable_prefix_caching=self.enable_prefix_caching,
                gpu_memory_utilization=self.gpu_memory_utilization,
            ),
            parallel_config=ParallelConfig(
                self.engine_worker_queue_port, self.tensor_parallel_size, self.data_parallel_size
            ),
            structured_outputs_config=StructuredOutputsConfig(
                logits_processors=tuple(spec_of(given) for given in self.logits_processors),
                on_error=self.logits_processors_on_error,
                max_faults=self.logits_processors_max_faults,
                time_budget=self.logits_processors_time_budget,
                memory_budget=self.logits_processors_memory_budget,
                vllm_compat=self.vllm_compat,
                shadow=tuple(dict.fromkeys(self.shadow)),
                max_trace_tokens=self.max_trace_tokens,
            ),
            chat_config=ChatConfig(
                chat_template=_read_chat_template(self.chat_template),
                trust_request_chat_template=self.trust_request_chat_template,
                tool_call_parser=self.tool_call_parser,
                enable_auto_tool_choice=self.enable_auto_tool_choice,
                reasoning_parser=self.reasoning_parser,
            ),
            guided_decoding_config=GuidedDecodingConfig(
                any_whitespace=not self.guided_decoding_disable_any_whitespace,
                max_bytes=self.guided_decoding_max_bytes,
                timeout=self.guided_decoding_timeout,
                cache_size=self.guided_decoding_cache_size,
            ),
            supervision_config=SupervisionConfig(
                restart=self.on_worker_failure == "restart",
                step_timeout=self.step_timeout,
                max_restarts=self.max_worker_restarts,
            ),
            observability_config=ObservabilityConfig(self.log_stats_interval),
        )

    def _with_blocks(self, files: ModelFiles, settled: FDConfig) -> CacheConfig:
        cache = settled.cache_config
        num_blocks = settle_num_blocks(
            files,
            block_size=cache.block_size,
            max_model_len=settled.model_config.max_model_len,
            max_num_seqs=settled.scheduler_config.max_num_seqs,
            dtype=cache.dtype,
            override=cache.num_blocks or self.num_gpu_blocks_override,
            memory_share=self.gpu_memory_utilization,
            ranks=settled.parallel_config.tensor_parallel_size,
            workers=settled.parallel_config.data_parallel_size,
        )
        return replace(cache, num_blocks=num_blocks)

    def _settle_kv_cache_dtype(self) -> str:
        if self.kv_cache_dtype != "auto":
            return self.kv_cache_dtype
        return current_platform().kv_cache_dtype(self.quantization)

    def _settle_max_model_len(self, model_limit: int) -> int:
        if self.max_model_len is None:
            return min(model_limit, DEFAULT_MAX_MODEL_LEN)
        if self.max_model_len > model_limit:
            raise ValueError(f"max_model_len: {self.max_model_len} is more than the model's own {model_limit}")
        return self.max_model_len


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


def spec_of(given: str | type) -> str:
    """The SPEC of a declared logits processor: itself, or for a class the path under which it is declared."""
    return given if isinstance(given, str) else f"{given.__module__}:{given.__qualname__}"


def require_port(name: str, port: int | None, count: int = 1) -> None:
    """Raise ValueError unless `port` is None or the first of `count` TCP port numbers."""
    last = 65536 - count
    if port is not None and not 1 <= port <= last:
        behind = f", since {count} workers have ports behind each other" if count > 1 else ""
        raise ValueError(f"{name}: {port} is not a TCP port; allowed are 1 to {last}{behind}")


def _read_chat_template(given: str | None) -> str | None:
    """What a file holds; text that can be no path is a template itself, as in vLLM."""
    if given is None or any(character in given for character in "{}\n"):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"chat_template: cannot read {given}: {error}") from None


def _require_at_least(least: int, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be an integer of at least {least}")


def _require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}")
