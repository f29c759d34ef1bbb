"""The options of the engine: one flat form that the command line, a YAML file and `LLM(...)` keyword arguments share.

`settled_config.py` makes the structured form of them. Imports no Paddle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any

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
    DEFAULT_PROMPT_STEP_SECONDS,
    DEFAULT_STEP_TIMEOUT,
    FDConfig,
)
from fastdeploy_lp.config.option_values import (
    require_at_least,
    require_one_of,
    require_port,
    require_seconds,
    require_share,
    require_types,
)
from fastdeploy_lp.request.pooling_params import POOLING_TYPES
from fastdeploy_lp.startup.settled_config import DEFAULT_MAX_MODEL_LEN, settled_config

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
    logits_processors_code_timeout: float = field(
        default=10.0,
        metadata={
            "group": "Logits processors",
            "help": "seconds that a processor's constructor or check of a request's arguments may take; 0 for no limit",
        },
    )
    vllm_compat: bool = field(
        default=False,
        metadata={
            "group": "Logits processors",
            "help": "let packages written for vLLM run without it, and load vLLM's entry points",
        },
    )
    fastdeploy_compat: bool = field(
        default=False,
        metadata={
            "group": "Logits processors",
            "help": "let packages that import fastdeploy's logits-processor modules run without FastDeploy",
        },
    )
    mandatory: list[str] = field(
        default_factory=list,
        metadata={
            "group": "Logits processors",
            "help": "declared logits processors that no request can leave out, reorder or shadow; they fail closed",
            "metavar": "NAME",
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
    prompt_step_seconds: float = field(
        default=DEFAULT_PROMPT_STEP_SECONDS,
        metadata={
            "group": "Scheduling",
            "help": "seconds that prompts may add to a step in which other requests generate; 0 for no limit",
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
        metadata={
            "group": "Guided decoding",
            "help": "seconds of processor time that compiling a request's grammar may take",
        },
    )
    guided_decoding_cache_size: int = field(
        default=DEFAULT_GUIDED_CACHE_SIZE,
        metadata={"group": "Guided decoding", "help": "compiled grammars that are kept for further requests"},
    )
    engine_worker_queue_port: int | None = field(
        default=None,
        metadata={
            "group": "Processes",
            "help": "loopback TCP port between API process and worker (default, and safer: a private unix socket)",
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
        self.model = _text_of_path(self.model)
        self.chat_template = _text_of_path(self.chat_template)
        self._require_choices()
        self._require_lists()
        require_types(self)
        self._require_numbers()
        for name in ("engine_worker_queue_port", "cache_queue_port"):
            require_port(name, getattr(self, name), self.data_parallel_size)
        self._require_what_goes_together()

    def _require_choices(self) -> None:
        for field_ in fields(self):
            value, choices = getattr(self, field_.name), field_.metadata.get("choices")
            if choices is not None and not (value is None and field_.default is None):
                require_one_of(field_.name, value, choices)

    def _require_lists(self) -> None:
        if not isinstance(self.logits_processors, (list, tuple)):
            raise ValueError(f"logits_processors: must be a list, not {self.logits_processors!r}")
        for index, spec in enumerate(self.logits_processors):
            if not isinstance(spec, (str, type)):
                raise ValueError(f"logits_processors.{index}: {spec!r} is neither a name nor a class")
        self.logits_processors = list(self.logits_processors)
        for option in ("mandatory", "shadow"):
            names = getattr(self, option)
            if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{option}: must be a list of names, not {names!r}")

    def _require_numbers(self) -> None:
        guided = ("guided_decoding_max_bytes", "guided_decoding_cache_size")
        for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "data_parallel_size", *guided):
            require_at_least(1, name, getattr(self, name))
        budgets = ("logits_processors_max_faults", "logits_processors_memory_budget")
        for name in ("max_waiting_requests", "max_worker_restarts", "max_trace_tokens", *budgets):
            require_at_least(0, name, getattr(self, name))
        for name in ("block_size", "max_model_len", "num_gpu_blocks_override"):
            if getattr(self, name) is not None:
                require_at_least(1, name, getattr(self, name))
        seconds = ("logits_processors_time_budget", "logits_processors_code_timeout")
        for name in (*seconds, "step_timeout", "log_stats_interval", "prompt_step_seconds"):
            require_seconds(name, getattr(self, name))
        require_seconds("guided_decoding_timeout", self.guided_decoding_timeout, above_zero=True)
        require_share("gpu_memory_utilization", self.gpu_memory_utilization)

    def _require_what_goes_together(self) -> None:
        if self.skip_tokenizer_init:
            for name in ("chat_template", "tool_call_parser", "reasoning_parser"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: has no text to work on with skip_tokenizer_init")
        if self.tensor_parallel_size > 1 and self.data_parallel_size > 1:
            raise ValueError("data_parallel_size: must be 1 with tensor_parallel_size; run several servers instead")
        if self.cache_queue_port is not None and not self.enable_prefix_caching:
            raise ValueError("cache_queue_port: without enable_prefix_caching there are no KV-cache events to publish")

    @property
    def processor_specs(self) -> list[str]:
        """The SPECs of the declared logits processors."""
        return [spec_of(given) for given in self.logits_processors]

    def create_fd_config(self, *, show_progress: bool = True) -> FDConfig:
        """Find the model (converting a GGUF file once) and settle every open default, the platform's wishes included.

        Raises CheckpointError (a ValueError) for a model that cannot be used and ValueError for options that do not
        fit it or the platform.
        """
        return settled_config(self, show_progress=show_progress)


AsyncEngineArgs = EngineArgs
"""vLLM's name for the options of `AsyncLLM`."""


def spec_of(given: str | type) -> str:
    """The SPEC of a declared logits processor: itself, or for a class the path under which it is declared."""
    return given if isinstance(given, str) else f"{given.__module__}:{given.__qualname__}"


def _text_of_path(value: str | None) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
