"""Everything the API process and the worker say to each other: msgpack on a ZeroMQ socket, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.stats import ProcessorStats, Quarantine
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.stats import SchedulerStats


class WorkerStart(msgspec.Struct, tag=True):
    """The first message, sent once through the worker's standard input, which no one else can write to.

    `pickled_processors` maps the SPEC of a class that was given as an object to its cloudpickle. `running_calls_fd` is
    the inherited file descriptor of the memory in which the worker records the processors that run, and `quarantine`
    what the last worker left.
    """

    fd_config: FDConfig
    endpoint: str
    server_key: bytes
    pickled_processors: dict[str, bytes]
    running_calls_fd: int | None = None
    quarantine: Quarantine = msgspec.field(default_factory=Quarantine)


class AddRequest(msgspec.Struct, tag=True):
    """Run one sequence: `max_tokens` and `seed` of `params` are settled, `selection` is validated.

    grammar: what the output has to match, which compiles; None for anything. client: the API key or address it came
    from, "" where there is none. pooling: for a prompt that is pooled; then nothing is sampled, and `params`,
    `selection` and `grammar` are the defaults.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SettledParams = msgspec.field(default_factory=SettledParams)
    selection: Selection = msgspec.field(default_factory=Selection)
    grammar: str | None = None
    client: str = ""
    pooling: PoolingParams | None = None


class AbortRequests(msgspec.Struct, tag=True):
    """Drop these requests wherever they are; unknown ids are requests that ended meanwhile."""

    request_ids: list[str]


class ResetProcessor(msgspec.Struct, tag=True):
    """Put a quarantined logits processor back into service."""

    name: str


class Shutdown(msgspec.Struct, tag=True):
    """End the worker process."""


class WorkerReady(msgspec.Struct, tag=True):
    """The model is loaded; the worker takes requests.

    `argmax_invariant` is what each logits processor says of itself.
    """

    load_seconds: float
    argmax_invariant: dict[str, bool] = {}


class WorkerFailed(msgspec.Struct, tag=True):
    """The worker cannot start or go on, and why in one line."""

    message: str


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities at one position: the token that stands there first, then the most likely ones in order.

    rank: 1 plus the number of tokens more likely than the one that stands there.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class PackedLogprobs(msgspec.Struct, array_like=True):
    """`TokenLogprobs` of several positions in little-endian arrays, of which no step makes objects.

    width: tokens of each position. token_ids: int32 [positions, width]. logprobs: float32 of the same shape. ranks:
    int32 [positions].
    """

    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes


class StageNumbers(msgspec.Struct, array_like=True):
    """A row's distribution behind one stage: `token_ids` and `logits` are the most likely ones, in order.

    log_sum: logarithm of the sum of exp(logit). moved: total variation distance from the last stage that ran.
    most_likely: the token with the greatest logit. logit, rank: of the token that was sampled in the end.
    """

    token_ids: list[int]
    logits: list[float]
    log_sum: float
    entropy: float
    moved: float
    most_likely: int
    logit: float
    rank: int


class StageTrace(msgspec.Struct, array_like=True):
    """One stage of a traced token, with the names of `trace.TraceStage`; `numbers` is None unless it ran."""

    name: str
    kind: str
    status: str
    seconds: float
    numbers: StageNumbers | None = None


ShadowTokens = dict[str, int | None]
"""By processor in shadow, the token that there would have been: -1 for none, None if the processor failed."""


class SequenceStep(msgspec.Struct, array_like=True):
    """Result of one step for one sequence.

    `error` is set when the sequence ended because it could not go on, `unavailable` when that is because it asked for
    something out of service, and `by_request` when what it asks for cannot be done.
    `num_cached_tokens` comes with the first token: so many
    tokens of the prompt were found in the prefix cache. `logprobs` is one entry a token, when asked for;
    `prompt_logprobs`, with a position for each prompt token but the first, comes with the first output token, and so
    does `scheduled_at`: when the sequence was first given a slot, on the machine's monotonic clock.
    `trace` is one list of stages a token, while the request is traced; `shadows` one entry a token, while processors
    run in shadow for it.
    A pooled prompt gets one step, with `pooled`, its vector [hidden_size] as little-endian float32, and both of these;
    `pooled` has a vector for each token, [tokens, hidden_size], if it asked for "all".
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    unavailable: bool = False
    num_cached_tokens: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PackedLogprobs | None = None
    pooled: bytes | None = None
    scheduled_at: float | None = None
    trace: list[list[StageTrace]] | None = None
    shadows: list[ShadowTokens] | None = None
    by_request: bool = False


class StepOutputs(msgspec.Struct, tag=True):
    """One step of the whole batch, with the worker's counters after it.

    `scheduler_stats` has no `processors` here: these are sent apart, and only when something but their seconds has
    changed.
    """

    steps: list[SequenceStep]
    scheduler_stats: SchedulerStats
    processors: list[ProcessorStats] | None = None


ToWorker = AddRequest | AbortRequests | ResetProcessor | Shutdown
FromWorker = WorkerReady | WorkerFailed | StepOutputs


def encode(message: WorkerStart | ToWorker | FromWorker) -> bytes:
    """The message as msgpack bytes."""
    return msgspec.msgpack.encode(message)


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A reusable typed decoder for `WorkerStart`, `ToWorker` or `FromWorker`; raises msgspec.ValidationError."""
    return msgspec.msgpack.Decoder(kind)
