"""FDConfig and its parts: what the operator decided, built once and read by every process. Imports no Paddle."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING

from fastdeploy_lp.config.model_config import ModelConfig
from fastdeploy_lp.config.option_values import (
    Given,
    at_least,
    option,
    require_collector,
    require_names,
    require_number,
    require_processors,
    require_seconds,
    require_share,
    require_some_seconds,
    spec_of,
)
from fastdeploy_lp.config.speculation import Speculation, require_speculation, speculation_of
from fastdeploy_lp.request.guided_decoding import WHITESPACE

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
DEFAULT_GUIDED_MAX_BYTES = 128 * 1024
DEFAULT_GUIDED_TIMEOUT = 5.0
DEFAULT_GUIDED_CACHE_SIZE = 128
DEFAULT_MAX_TRACE_TOKENS = 1024
DEFAULT_LOG_STATS_INTERVAL = 10.0
DEFAULT_STEP_TIMEOUT = 120.0
DEFAULT_MAX_WORKER_RESTARTS = 5
ON_ERROR = ("fail", "skip", "abort")
ON_WORKER_FAILURE = ("restart", "exit")


def chat_template_text(given: str | None) -> str | None:
    """Returns the content of a template file; text that cannot be a path is a template itself, as in vLLM.

    Raises ValueError for a file that cannot be read.
    """
    if given is None or any(character in given for character in "{}\n"):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"chat_template: cannot read {given}: {error}") from None


def _specs(given: list[str | type]) -> tuple[str, ...]:
    return tuple(map(spec_of, given))


def _unique(given: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(given))


def _restarts(given: str | None) -> bool:
    return given == "restart"


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits on running sequences (the slots in `share_inputs`), waiting ones, and the work of a step.

    prompt_step_seconds: what prompts may add to a step in which sequences generate; 0 for any time.
    upload_time_share: what uploaded processors may add to the time of other sequences' steps, as a share of it.
    client_time_share: what clients may add to each other's steps, as a share of the time of a client's own tokens.
    fair_queue: clients share what a step computes of prompts. speculation: None for one token a step.
    """

    max_num_seqs: int = option(
        32,
        group="Scheduling",
        help="slots: sequences that run at once; a request with n answers is n sequences",
        check=at_least(1),
    )
    max_num_batched_tokens: int = option(
        DEFAULT_MAX_NUM_BATCHED_TOKENS,
        given=Given(type="int | None", default=None, settle=lambda given: given or DEFAULT_MAX_NUM_BATCHED_TOKENS),
        group="Scheduling",
        help="tokens that one step computes: one a running request, the rest for prompts, cut as needed (default: "
        f"{DEFAULT_MAX_NUM_BATCHED_TOKENS}; on a GPU 4096)",
        check=at_least(1),
    )
    max_waiting_requests: int = option(
        DEFAULT_MAX_WAITING_REQUESTS,
        group="Scheduling",
        help="sequences that may wait for a slot before further requests get status 429; 0: no waiting",
        check=at_least(0),
    )
    prompt_step_seconds: float = option(
        0.0,
        given=Given(default=DEFAULT_PROMPT_STEP_SECONDS),
        group="Scheduling",
        help="seconds that prompts may add to a step in which other requests generate; 0 for no limit",
        check=require_seconds,
    )
    upload_time_share: float = option(
        0.05,
        group="Scheduling",
        help="time that uploaded processors may add to steps in which other requests generate, as a share of it",
        check=require_share,
    )
    client_time_share: float = option(
        0.0,
        group="Scheduling",
        help="time that other clients may add to a client's steps, as a share of its own; 0 for no limit",
        check=require_number,
    )
    stream_interval: int = option(
        1,
        group="Scheduling",
        help="output tokens that each piece of a stream has at least, but for the first and the last piece",
        check=at_least(1),
    )
    fair_queue: bool = False
    speculation: Speculation | None = option(
        None,
        given=Given("speculative_config", type="dict[str, Any] | str | None", settle=speculation_of),
        group="Scheduling",
        help='verify draft tokens, several a step, with unchanged results, a JSON object: {"method": "auto"}',
        check=require_speculation,
    )


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
    cache_queue_port: int | None = option(
        None, group="KV cache", help="loopback TCP port on which KV-cache events are published (ZeroMQ PUB)"
    )
    dtype: str = "float32"
    enable_prefix_caching: bool = option(
        True, group="KV cache", help="requests with the same prefix share computed blocks"
    )
    gpu_memory_utilization: float = option(
        0.9,
        group="KV cache",
        help="share of the device's free memory (on the CPU: main memory) for weights and KV cache",
        check=require_share,
    )


@dataclass(frozen=True)
class ParallelConfig:
    """Numbers of processes that compute, and their connection: without a port, private unix sockets.

    tensor_parallel_size: the ranks that share one model. data_parallel_rank: which of the `data_parallel_size` workers
    of this host the configuration is for.
    """

    engine_worker_queue_port: int | None = option(
        None,
        group="Processes",
        help="loopback TCP port between API process and worker (default: a private unix socket, which is safer)",
    )
    tensor_parallel_size: int = option(
        1,
        group="Processes",
        help="processes that share the model's weights and KV cache, one a device",
        check=at_least(1),
    )
    data_parallel_size: int = option(
        1,
        group="Processes",
        help="workers on this host, each with the whole model and its share of the cores or a GPU of its own",
        check=at_least(1),
    )
    data_parallel_rank: int = 0


@dataclass(frozen=True)
class DeviceConfig:
    """Which classes run the model, each named "module:Class"; None asks the platform for its own.

    platform: the name of the platform that has settled the configuration; None before it has. attention_backend: also a
    short name. cuda_graphs, pinned_memory, overlap: False does without, to find the cause of a failure; a CPU has none.
    """

    platform: str | None = None
    worker_class: str | None = None
    model_runner_class: str | None = None
    attention_backend: str | None = option(
        None,
        group="GPU",
        choices=("kernels", "block"),
        help="attention: kernels, our own with Paddle's operator for new prompts (the default on a GPU); "
        "or block, Paddle's operators alone",
    )
    communicator_class: str | None = None
    cuda_graphs: bool = option(
        True, group="GPU", help="record generation as CUDA graphs; without them each operator is started by the host"
    )
    pinned_memory: bool = option(
        True, group="GPU", help="copy to the GPU from pinned memory; without it the host waits for each copy"
    )
    overlap: bool = option(
        True, group="GPU", help="queue the model's next pass before the tokens of a step are read; needs pinned memory"
    )


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

    logits_processors: tuple[str, ...] = option(
        (),
        given=Given(type="list[str | type]", default=[], settle=_specs),
        group="Logits processors",
        help="logits processors in execution order: builtin class name or module.path:ClassName",
        check=require_processors,
    )
    on_error: str = option(
        "fail",
        given=Given("logits_processors_on_error"),
        group="Logits processors",
        help="when a logits processor raises: fail the requests that use it, skip it for the step, or abort",
        choices=ON_ERROR,
    )
    max_faults: int = option(
        5,
        given=Given("logits_processors_max_faults"),
        group="Logits processors",
        help="faults that put a logits processor into quarantine; 0 for never",
        check=at_least(0),
    )
    time_budget: float = option(
        1.0,
        given=Given("logits_processors_time_budget"),
        group="Logits processors",
        help="seconds of a step that one logits processor may take; 0 for no limit",
        check=require_seconds,
    )
    vllm_compat: bool = option(
        False,
        group="Logits processors",
        help="let packages written for vLLM run without it, and load vLLM's entry points",
    )
    shadow: tuple[str, ...] = option(
        (),
        given=Given(type="list[str]", default=[], settle=_unique),
        group="Logits processors",
        help="declared logits processors that run on copies only, to count how often they would change a token",
        check=require_names,
        metavar="NAME",
    )
    max_trace_tokens: int = option(
        DEFAULT_MAX_TRACE_TOKENS,
        group="Logits processors",
        help="tokens of one request that may be traced; 0 refuses traces",
        check=at_least(0),
    )
    memory_budget: int = option(
        DEFAULT_MEMORY_BUDGET,
        given=Given("logits_processors_memory_budget"),
        group="Logits processors",
        help="MiB of main memory that a logits processor may take, else it goes into quarantine; 0 for no limit",
        check=at_least(0),
    )
    mandatory: tuple[str, ...] = option(
        (),
        given=Given(type="list[str]", default=[], settle=_unique),
        group="Logits processors",
        help="declared logits processors that no request can leave out, reorder or shadow; they fail closed",
        check=require_names,
        metavar="NAME",
    )
    fastdeploy_compat: bool = option(
        False,
        group="Logits processors",
        help="let packages that import fastdeploy's logits-processor modules run without FastDeploy",
    )
    code_timeout: float = option(
        10.0,
        given=Given("logits_processors_code_timeout"),
        group="Logits processors",
        help="seconds that a processor's constructor or check of a request's arguments may take; 0 for no limit",
        check=require_seconds,
    )
    first_calls: float = 60.0


@dataclass(frozen=True)
class ObservabilityConfig:
    """The engine's reports.

    log_stats_interval: seconds between two lines of the log on its load and two calls of stat loggers' `log`; 0: never.
    otlp_traces_endpoint: where spans of requests are sent to, None for nowhere.
    """

    log_stats_interval: float = option(
        DEFAULT_LOG_STATS_INTERVAL,
        group="Reports",
        help="seconds between two log lines on the engine's load, and two calls of stat loggers' log; 0 for none",
        check=require_seconds,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        group="Reports",
        help="send OpenTelemetry spans of requests to this collector, such as http://127.0.0.1:4318/v1/traces",
        check=require_collector,
    )


@dataclass(frozen=True)
class GuidedDecodingConfig:
    """Bounds on the grammars of requests.

    whitespace: between the parts of JSON, unless a request has its own. any_whitespace: False for "none". max_bytes: of
    a grammar's or schema's text.
    timeout: seconds of processor time that compiling one may take. cache_size: compiled grammars, and verdicts on
    grammars, that are kept.
    """

    whitespace: str = option(
        WHITESPACE[0],
        given=Given("guided_decoding_whitespace"),
        group="Guided decoding",
        help="whitespace between the parts of JSON: a blank or a line break with an indent, any, or none",
        choices=WHITESPACE,
    )
    any_whitespace: bool = option(
        True,
        given=Given("guided_decoding_disable_any_whitespace", default=False, settle=not_),
        group="Guided decoding",
        help="the same as --guided-decoding-whitespace none",
    )
    max_bytes: int = option(
        DEFAULT_GUIDED_MAX_BYTES,
        given=Given("guided_decoding_max_bytes"),
        group="Guided decoding",
        help="bytes that a request's schema or grammar may have",
        check=at_least(1),
    )
    timeout: float = option(
        DEFAULT_GUIDED_TIMEOUT,
        given=Given("guided_decoding_timeout"),
        group="Guided decoding",
        help="seconds of processor time that compiling a request's grammar may take",
        check=require_some_seconds,
    )
    cache_size: int = option(
        DEFAULT_GUIDED_CACHE_SIZE,
        given=Given("guided_decoding_cache_size"),
        group="Guided decoding",
        help="compiled grammars that are kept for further requests",
        check=at_least(1),
    )

    @property
    def json_whitespace(self) -> str:
        """The mode of requests without their own, one of WHITESPACE."""
        return self.whitespace if self.any_whitespace else "none"


@dataclass(frozen=True)
class ChatConfig:
    """Conversion of conversations to prompts, and of outputs to messages.

    chat_template: a jinja template in place of the model's own. trust_request_chat_template: requests may send theirs.
    tool_call_parser: reads tool calls; None for the one that fits the chat template. enable_auto_tool_choice: False
    leaves calls unread, so that no request may send tools. reasoning_parser: reads reasoning; None for nothing.
    """

    chat_template: str | None = option(
        None,
        given=Given(settle=chat_template_text),
        group="Chat",
        help="file with a jinja chat template, or the template itself, for the model's own",
    )
    trust_request_chat_template: bool = option(
        False, group="Chat", help="requests may contain a chat template, which runs in a sandbox"
    )
    tool_call_parser: str | None = option(
        None, group="Chat", help="how tool calls are read: hermes (default: what the chat template shows)"
    )
    enable_auto_tool_choice: bool = option(
        True, group="Chat", help="let the model decide whether to call the tools that a chat request sends"
    )
    reasoning_parser: str | None = option(
        None,
        group="Chat",
        help="separate reasoning from the answer: deepseek_r1 or qwen3 (default: all of it is the answer)",
    )


@dataclass(frozen=True)
class SupervisionConfig:
    """Reaction to a worker that ends or is silent for too long.

    restart: another worker takes its place; False ends the engine. step_timeout: seconds without a word from a worker
    that has work, after which it is ended by force; 0 for no limit. max_restarts: within a minute, before the engine
    ends all the same.
    """

    restart: bool = option(
        False,
        given=Given("on_worker_failure", type="str | None", default=None, settle=_restarts),
        group="Processes",
        help="when the worker ends or hangs: restart it, or exit (default: restart; exit in LLM and run-batch)",
        choices=ON_WORKER_FAILURE,
    )
    step_timeout: float = option(
        DEFAULT_STEP_TIMEOUT,
        group="Processes",
        help="seconds that one step may take before the worker counts as hung; 0 for no limit",
        check=require_seconds,
    )
    max_restarts: int = option(
        DEFAULT_MAX_WORKER_RESTARTS,
        given=Given("max_worker_restarts"),
        group="Processes",
        help="restarts of the worker within a minute before the server ends",
        check=at_least(0),
    )


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
    # Of a second model that drafts tokens; None without one.
    draft_model_config: ModelConfig | None = None

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, one a process, whose files are read when it is first used.

        Its methods raise ValueError for a model without a tokenizer.
        """
        from fastdeploy_lp.model_tokenizer import model_tokenizer

        return model_tokenizer(self.model_config.directory, self.model_config.eos_token_ids)
