"""Messages between the API process and the worker: msgpack on a ZeroMQ socket, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.declared import Selection
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.request.outputs import ProcessorStop
from fastdeploy_lp.request.phase import Phase
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.stats import ProcessorStats, SchedulerStats


class WorkerStart(msgspec.Struct, tag=True):
    """The first message, sent once through the worker's standard input, to which no other process can write.

    `pickled_processors` maps the SPEC of a class that was given as an object to its cloudpickle. `running_calls_fd` is
    the inherited file descriptor of the memory in which the worker records running processors. `quarantine` is the
    quarantine of the previous worker.
    """

    fd_config: FDConfig
    endpoint: str
    server_key: bytes
    pickled_processors: dict[str, bytes]
    running_calls_fd: int | None = None
    quarantine: Quarantine = msgspec.field(default_factory=Quarantine)


class AddRequest(msgspec.Struct, tag=True):
    """Runs one sequence: `max_tokens` and `seed` of `params` are settled, `selection` is validated.

    grammar: the grammar of the output, which is known to compile; None for any output. phase: the part of the output
    that it is for, None for all of it. client: the API key or address of the sender, "" without one. pooling: set for
    a prompt to pool; nothing is sampled then, and `params`, `selection` and `grammar` are the defaults.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SettledParams = msgspec.field(default_factory=SettledParams)
    selection: Selection = msgspec.field(default_factory=Selection)
    grammar: str | None = None
    client: str = ""
    pooling: PoolingParams | None = None
    phase: Phase | None = None


class AbortRequests(msgspec.Struct, tag=True):
    """Drops these requests; unknown ids are requests that ended meanwhile."""

    request_ids: list[str]


class ResetProcessor(msgspec.Struct, tag=True):
    """Returns a quarantined logits processor to service."""

    name: str


class Shutdown(msgspec.Struct, tag=True):
    """Ends the worker process."""


class WorkerReady(msgspec.Struct, tag=True):
    """The model is loaded; the worker accepts requests.

    `argmax_invariant` has the declaration of each logits processor by name.
    """

    load_seconds: float
    argmax_invariant: dict[str, bool] = {}


class WorkerFailed(msgspec.Struct, tag=True):
    """The worker cannot start or continue; `message` is the reason in one line."""

    message: str


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities at one position: the actual token first, then the most likely tokens in order.

    rank: 1 plus the number of tokens more likely than the actual one.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class PackedLogprobs(msgspec.Struct, array_like=True):
    """`TokenLogprobs` of several positions in little-endian arrays, so that no step creates objects for them.

    width: tokens of each position. token_ids: int32 [positions, width]. logprobs: float32 of the same shape. ranks:
    int32 [positions].
    """

    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes


class StageNumbers(msgspec.Struct, array_like=True):
    """A row's distribution after one stage: `token_ids` and `logits` are the most likely tokens, in order.

    log_sum: logarithm of the sum of exp(logit). moved: total variation distance from the last stage that ran.
    most_likely: the token with the greatest logit. logit, rank: of the sampled token.
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
    """One stage of a traced token, with the names of `trace.TraceStage`; `numbers` is None unless it ran.

    taken_back: token ids, of a stage that took tokens back.
    """

    name: str
    kind: str
    status: str
    seconds: float
    numbers: StageNumbers | None = None
    taken_back: list[int] | None = None


ShadowTokens = dict[str, int | None]
"""By processor in shadow, the token that it would have led to: -1 for none, None if the processor failed."""


class SequenceStep(msgspec.Struct, array_like=True):
    """Result of one step for one sequence.

    `error` is set when the sequence failed; then `unavailable` is set if it uses something out of service, and
    `by_request` if its request is impossible. The first token's step has `num_cached_tokens`, the number of prompt
    tokens found in the prefix cache, `scheduled_at`, the time of the first slot on the host's monotonic clock, and
    `prompt_logprobs`, if requested, with a position for each prompt token but the first. `logprobs` has one entry a
    token, if requested; `trace` one list of stages a token, while the request is traced; `shadows` one entry a token,
    while processors run in shadow for it.
    drafted: draft tokens that the worker's step verified, of which the sequence took `accepted`; set in the first of
    the sequence's steps that come together, which are one unless it fails or its trace ends.
    emitted: the values that processors emitted with the token, or with their end of the sequence: name and JSON.
    A pooled prompt has one step, with `num_cached_tokens`, `scheduled_at` and `pooled`, its vector [hidden_size] as
    little-endian float32, or one vector per token, [tokens, hidden_size], for the task "token_embed".
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | ProcessorStop | None = None
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
    drafted: int = 0
    accepted: int = 0
    emitted: list[tuple[str, bytes]] | None = None

    def take(self, later: SequenceStep) -> bool:
        """Adds the tokens of the sequence's next step; returns False for a failure, or other details than these.

        Values that processors emitted stay with the step of their token.
        """
        details = [(getattr(self, name), getattr(later, name)) for name in DETAILS]
        if later.error is not None or self.emitted or later.emitted:
            return False
        if any((mine is None) != (its is None) for mine, its in details):
            return False
        self.token_ids += later.token_ids
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        for mine, its in details:
            if mine is not None:
                mine += its
        return True


DETAILS = ("logprobs", "trace", "shadows")
"""Fields of `SequenceStep` with one entry for each token."""


class StepOutputs(msgspec.Struct, tag=True):
    """One step of the whole batch, with the worker's counters after it.

    `scheduler_stats.processors` is empty here. `processors` has the counters of the logits processors; it is sent only
    when more than their seconds has changed.
    """

    steps: list[SequenceStep]
    scheduler_stats: SchedulerStats
    processors: list[ProcessorStats] | None = None


ToWorker = AddRequest | AbortRequests | ResetProcessor | Shutdown
FromWorker = WorkerReady | WorkerFailed | StepOutputs


def encode(message: WorkerStart | ToWorker | FromWorker) -> bytes:
    """Returns the message as msgpack bytes."""
    return msgspec.msgpack.encode(message)


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Returns a reusable decoder for `WorkerStart`, `ToWorker` or `FromWorker`; it raises msgspec.ValidationError."""
    return msgspec.msgpack.Decoder(kind)
