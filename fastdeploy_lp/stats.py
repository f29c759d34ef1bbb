"""Statistics for stat loggers: of the scheduler, of one iteration, and of an ended completion.

Times are in seconds; timestamps are on the monotonic clock that all processes of a host share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

ABORT, ERROR = "abort", "error"
OK, QUARANTINED = "ok", "quarantined"


class ShadowStats(msgspec.Struct):
    """Counters of a processor in shadow since the worker started.

    tokens: tokens that it was tried on. changed: tokens that it would have changed. faults: its failures, and steps in
    which it took longer than its time budget. seconds, requests, state, last_error: as in the chain.
    """

    tokens: int = 0
    changed: int = 0
    faults: int = 0
    seconds: float = 0.0
    requests: int = 0
    state: str = OK
    last_error: str | None = None


class ProcessorStats(msgspec.Struct):
    """Counters of one declared processor since the worker started.

    seconds: time spent in its `update_state` and `apply`. rows: rows it was used on, summed over steps. requests:
    requests that used it. faults: steps in which it failed. slow_steps: steps in which it took longer than its time
    budget. skipped_greedy: steps in which it was left out because every row was greedy. finishes: requests that it
    ended. emitted: values that it sent to clients. rewinds: times that it took tokens back. state: "ok" or
    "quarantined". shadow: its counters in shadow.
    """

    name: str
    state: str = OK
    seconds: float = 0.0
    rows: int = 0
    requests: int = 0
    faults: int = 0
    slow_steps: int = 0
    skipped_greedy: int = 0
    last_error: str | None = None
    finishes: int = 0
    emitted: int = 0
    rewinds: int = 0
    shadow: ShadowStats = msgspec.field(default_factory=ShadowStats)

    @property
    def troubles(self) -> int:
        """A number that changes with every event that is reported to the operator at once."""
        faults = self.faults + self.slow_steps + self.shadow.faults
        # An exceeded memory budget puts a processor out of service without a fault.
        return faults + (self.state != OK) + (self.shadow.state != OK)


class DraftStats(msgspec.Struct):
    """Counters of the draft tokens of one kind since the worker started.

    drafts: verified drafts. tokens: their tokens. accepted: the tokens that were sampled too. accepted_at: accepted
    tokens by position in the draft.
    """

    kind: str
    drafts: int = 0
    tokens: int = 0
    accepted: int = 0
    accepted_at: list[int] = msgspec.field(default_factory=list)

    def add(self, tokens: int, accepted: int) -> None:
        """Counts one draft."""
        self.drafts += 1
        self.tokens += tokens
        self.accepted += accepted
        self.accepted_at += [0] * (accepted - len(self.accepted_at))
        for position in range(accepted):
            self.accepted_at[position] += 1


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The worker's counters after a step, as the worker sends them; all of them count since the worker started.

    num_running_reqs, num_waiting_reqs: sequences in slots, and sequences waiting for one.
    kv_cache_blocks_used, kv_cache_blocks_total: blocks that running sequences hold, and all blocks.
    prefix_cache_queries, prefix_cache_hits: prompt tokens looked up in the prefix cache, and tokens found there.
    num_preemptions: number of times that a running sequence gave up its blocks.
    step_time: duration of the step; 0 when the worker reports its load without a step.
    processors: each logits processor's uses, seconds, faults and state, in execution order.
    drafts: counters of draft tokens, one entry a kind.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_blocks_used: int = 0
    kv_cache_blocks_total: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    step_time: float = 0.0
    processors: Sequence[ProcessorStats] = field(default_factory=list)
    drafts: Sequence[DraftStats] = field(default_factory=list)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return share(self.kv_cache_blocks_used, self.kv_cache_blocks_total)

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Share of prompt tokens that were in the prefix cache, 0 to 1."""
        return share(self.prefix_cache_hits, self.prefix_cache_queries)


@dataclass(frozen=True, slots=True)
class ArrivedRequestStats:
    """An admitted request; max_tokens: limit of each completion, None for a pooled prompt."""

    num_prompt_tokens: int
    n: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class FinishedRequestStats:
    """An ended completion or pooled prompt; a request for n completions has n of these.

    request_id: the engine's id; `index`: the completion's index in its request. arrival: the timestamp of its arrival.
    finish_reason: "stop" and "length" for a normal end, "abort" for an aborted request, "error" for a failure.
    Times are None if the sequence ended before: time_to_first_token, e2e_latency (from arrival to the last token, or to
    the vector), queued_time (from arrival to a slot), prefill_time (from there to the first token), decode_time (from
    there to the last token), inference_time (the latter two) and mean_time_per_output_token.
    processors: the logits processors that the request used, in execution order. traceparent: the caller's span, as the
    HTTP header of that name has it.
    """

    request_id: str
    index: int
    finish_reason: str
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int
    max_tokens_param: int | None = None
    time_to_first_token: float | None = None
    e2e_latency: float | None = None
    queued_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None
    inference_time: float | None = None
    mean_time_per_output_token: float | None = None
    processors: tuple[str, ...] = ()
    arrival: float = 0.0
    traceparent: str | None = None


@dataclass(slots=True)
class IterationStats:
    """Statistics of one worker message, or of the time between two messages.

    iteration_timestamp: time of the message. num_generation_tokens: sampled tokens, including tokens after a stop
    string. num_preempted_reqs: sequences that gave up their blocks in this step.
    time_to_first_tokens_iter, inter_token_latencies_iter: one entry for the first token of a sequence, and one for each
    further token. arrived_requests, finished_requests: one entry each.
    """

    iteration_timestamp: float
    num_generation_tokens: int = 0
    num_preempted_reqs: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    arrived_requests: list[ArrivedRequestStats] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the admitted prompts."""
        return sum(request.num_prompt_tokens for request in self.arrived_requests)


def share(part: int, whole: int) -> float:
    """Returns `part / whole`; 0 if `whole` is 0."""
    return part / whole if whole else 0.0
