"""FDConfig and its parts: what the operator decided, built once and read by every process. Imports no Paddle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdeploy_lp.model_tokenizer import ModelTokenizer

# Keys of clients and of operators, separated by commas; no other process gets them.
API_KEY_VARIABLE = "FASTDEPLOY_LP_API_KEY"
ADMIN_API_KEY_VARIABLE = "FASTDEPLOY_LP_ADMIN_API_KEY"
KEY_VARIABLES = frozenset({API_KEY_VARIABLE, ADMIN_API_KEY_VARIABLE})
DEFAULT_MEMORY_BUDGET = 1024
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
DEFAULT_MAX_WAITING_REQUESTS = 1024
DEFAULT_PROMPT_STEP_SECONDS = 0.05
DEFAULT_POOLING_TYPE = "last"
DEFAULT_GUIDED_MAX_BYTES = 128 * 1024
DEFAULT_GUIDED_TIMEOUT = 5.0
DEFAULT_GUIDED_CACHE_SIZE = 128
DEFAULT_MAX_TRACE_TOKENS = 1024
DEFAULT_LOG_STATS_INTERVAL = 10.0
DEFAULT_STEP_TIMEOUT = 120.0
DEFAULT_MAX_WORKER_RESTARTS = 5


@dataclass(frozen=True)
class ModelConfig:
    """The model that is served.

    `dtype` is the element type of weights and activations (logits are float32), `quantization` what they are rounded to
    (None, "w8a8" or "w8a16"); `hf_config` is the parsed `config.json`; `logprobs_mode` says which numbers requests for
    logprobs get, `pooling_type` how embeddings are pooled unless a request says otherwise ("mean" or "last"). With
    `skip_tokenizer_init` requests and answers are token ids.
    """

    model: str
    directory: str
    served_model_name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str = "float32"
    quantization: str | None = None
    hf_config: dict[str, Any] = field(default_factory=dict)
    logprobs_mode: str = "raw_logprobs"
    pooling_type: str = DEFAULT_POOLING_TYPE
    skip_tokenizer_init: bool = False


@dataclass(frozen=True)
class SchedulerConfig:
    """How many sequences run at once (the slots in `share_inputs`), how many may wait, and how much a step computes.

    prompt_step_seconds: what prompts may add to a step in which sequences generate; 0 for any time.
    fair_queue: clients share what a step computes of prompts.
    """

    max_num_seqs: int
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    max_waiting_requests: int = DEFAULT_MAX_WAITING_REQUESTS
    prompt_step_seconds: float = 0.0
    fair_queue: bool = False


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache: `block_size` tokens a block, `num_blocks` blocks including the null block 0.

    dtype: the element type of keys and values, "float32" or "float16"; on a GPU that of the model.
    gpu_memory_utilization: the share of the device's free memory that weights and cache may take.
    enable_prefix_caching: sequences that begin alike share blocks.
    cache_queue_port: where changes of the shared blocks are published; None for nowhere.
    """

    block_size: int
    num_blocks: int
    cache_queue_port: int | None = None
    dtype: str = "float32"
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = 0.9


@dataclass(frozen=True)
class ParallelConfig:
    """How many processes compute, and how they reach each other: without a port by private unix sockets.

    tensor_parallel_size: the ranks that share one model. data_parallel_rank: which of the `data_parallel_size` workers
    of this host the configuration is for.
    """

    engine_worker_queue_port: int | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0


@dataclass(frozen=True)
class DeviceConfig:
    """Which classes run the model, each named "module:Class"; None asks the platform for its own.

    platform: the name of the platform that has settled the configuration; None before it has.
    """

    platform: str | None = None
    worker_class: str | None = None
    model_runner_class: str | None = None
    attention_backend: str | None = None
    communicator_class: str | None = None


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """The chain: one SPEC a logits processor, in execution order, and what happens when one fails.

    on_error: "fail" ends the requests that use it, "skip" lets them go on without it, "abort" stops the worker.
    max_faults: faults and slow steps that put a processor into quarantine; 0 for never.
    time_budget: seconds of a step that a processor may take; ten times as long breaks it off. 0 for no budget.
    memory_budget: MiB of main memory that a processor may take before it goes into quarantine. 0 for no budget.
    code_timeout: seconds that its constructor, `validate_params` or `Params` may take for a request. 0 for no limit.
    first_calls: seconds beyond `time_budget` that a processor's first steps may take together, before they count.
    vllm_compat: provide stand-ins for vLLM's modules to packages written for it.
    shadow: names of processors that run beside the chain, on copies, for every request that would use them.
    max_trace_tokens: tokens of a request that may be traced; 0 for no traces.
    mandatory: names of processors that every request passes, whatever it selects.
    fastdeploy_compat: provide stand-ins for FastDeploy's modules.
    """

    logits_processors: tuple[str, ...] = ()
    on_error: str = "fail"
    max_faults: int = 5
    time_budget: float = 1.0
    vllm_compat: bool = False
    shadow: tuple[str, ...] = ()
    max_trace_tokens: int = DEFAULT_MAX_TRACE_TOKENS
    memory_budget: int = DEFAULT_MEMORY_BUDGET
    mandatory: tuple[str, ...] = ()
    fastdeploy_compat: bool = False
    code_timeout: float = 10.0
    first_calls: float = 60.0


@dataclass(frozen=True)
class ObservabilityConfig:
    """Every how many seconds the engine's load is written into the log, and `log` of stat loggers called; 0: never."""

    log_stats_interval: float = DEFAULT_LOG_STATS_INTERVAL


@dataclass(frozen=True)
class GuidedDecodingConfig:
    """Bounds on the grammars of requests.

    any_whitespace: JSON may have whitespace between its parts. max_bytes: of a grammar's or schema's text.
    timeout: seconds of processor time that compiling one may take. cache_size: compiled grammars, and verdicts on
    grammars, that are kept.
    """

    any_whitespace: bool = True
    max_bytes: int = DEFAULT_GUIDED_MAX_BYTES
    timeout: float = DEFAULT_GUIDED_TIMEOUT
    cache_size: int = DEFAULT_GUIDED_CACHE_SIZE


@dataclass(frozen=True)
class ChatConfig:
    """Conversion of conversations to prompts, and of outputs to messages.

    chat_template: a jinja template in place of the model's own. trust_request_chat_template: requests may send theirs.
    tool_call_parser: reads tool calls; None for the one that fits the chat template. enable_auto_tool_choice: False
    leaves calls unread, so that no request may send tools. reasoning_parser: reads reasoning; None for nothing.
    """

    chat_template: str | None = None
    trust_request_chat_template: bool = False
    tool_call_parser: str | None = None
    enable_auto_tool_choice: bool = True
    reasoning_parser: str | None = None


@dataclass(frozen=True)
class SupervisionConfig:
    """Reaction to a worker that ends or is silent for too long.

    restart: another worker takes its place; False ends the engine. step_timeout: seconds without a word from a worker
    that has work, after which it is ended by force; 0 for no limit. max_restarts: within a minute, before the engine
    ends all the same.
    """

    restart: bool = False
    step_timeout: float = DEFAULT_STEP_TIMEOUT
    max_restarts: int = DEFAULT_MAX_WORKER_RESTARTS


@dataclass(frozen=True)
class FDConfig:
    """Everything a logits processor, the worker and the API process may need to know, under upstream's names."""

    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    structured_outputs_config: StructuredOutputsConfig
    chat_config: ChatConfig = field(default_factory=ChatConfig)
    guided_decoding_config: GuidedDecodingConfig = field(default_factory=GuidedDecodingConfig)
    supervision_config: SupervisionConfig = field(default_factory=SupervisionConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, one a process, whose files are read when it is first used.

        Its methods raise ValueError for a model without a tokenizer.
        """
        from fastdeploy_lp.model_tokenizer import model_tokenizer

        return model_tokenizer(self.model_config.directory, self.model_config.eos_token_ids)
