"""A running or waiting sequence in the worker, and its chunk of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.chain.recorded_actions import ActionTotals, Rewind
from fastdeploy_lp.logits_processor.processor_args import ReadOnlyList
from fastdeploy_lp.messages import AddRequest, PackedLogprobs, SequenceStep, StageTrace
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.limits import MAX_REWIND
from fastdeploy_lp.request.outputs import ProcessorStop
from fastdeploy_lp.request.phase import Phase
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.trace import PROCESSOR, TOOK_BACK
from fastdeploy_lp.worker.prompt_pooling import POOLINGS

NO_SLOT = -1
# Budget tokens per prompt token with logprobs. Measured: its logits and top tokens cost about as much as a small model.
LOGPROBS_COST = 2


class WithheldSteps:
    """The latest steps of a sequence, oldest first, which are sent once nothing can take their tokens back.

    The step of a last token also waits here until it is known whether the token completes the text. Each step has one
    token; len: their number. The other contents of a step are taken back with its token, except the prompt's log
    probabilities, and the rewinds to its place in a trace: the next step has them.
    """

    def __init__(self) -> None:
        self._steps: deque[SequenceStep] = deque()
        self._prompt_logprobs: PackedLogprobs | None = None
        self._rewinds: list[StageTrace] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: SequenceStep) -> None:
        """Adds the sequence's next step."""
        if self._prompt_logprobs is not None:
            step.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        if step.trace is not None:
            step.trace[0][:0] = self._rewinds
        self._rewinds = []
        self._steps.append(step)

    def complete(self) -> None:
        """Sets the finish reason "stop" of the last step."""
        self._steps[-1].finish_reason = "stop"

    def take_back(self, count: int, names: Collection[str]) -> None:
        """Drops the last `count` steps, which must be there, for the processors of these names."""
        dropped = [self._steps.pop() for _ in range(count)][::-1]
        for step in dropped:
            self._prompt_logprobs = step.prompt_logprobs or self._prompt_logprobs
        if dropped and dropped[0].trace is not None:
            tokens = [token for step in dropped for token in step.token_ids]
            earlier = [stage for stage in dropped[0].trace[0] if stage.status == TOOK_BACK]
            later = [StageTrace(name, PROCESSOR, TOOK_BACK, 0.0, None, tokens) for name in names]
            self._rewinds = [*earlier, *later]

    def release(self, keep: int = 0) -> list[SequenceStep]:
        """Removes and returns all steps but the last `keep`."""
        return [self._steps.popleft() for _ in range(len(self._steps) - keep)]


@dataclass(slots=True)
class Sequence:
    """A prompt, its parameters, and the output so far.

    `slot` is its row in `share_inputs`, NO_SLOT while it waits; `block_table` lists its KV-cache blocks;
    `num_computed` counts the tokens whose keys and values are in them. `block_hashes` names its full blocks hashed so
    far, `num_known_blocks` of which other sequences can find; `num_cached_tokens` is the number of prompt tokens found
    in the cache at first admission, None before; `scheduled_at` is that time, on the monotonic clock. `was_preempted`
    is True if it lost a slot before. Processors hold the two lists of tokens, which only `append` changes.
    `max_rewind` is the most tokens that processors may take back at once, and `withheld` has the steps of those tokens;
    `num_rewinds` counts rewinds, and `num_taken_back` their tokens. `bans` has, by output length, the token ids that
    rewinds to this place have banned there. `drafted` and `accepted` count draft tokens since its last sent step.
    `pooling` is set for a pooled prompt: it ends with its last token and generates nothing. `grammar` is the grammar
    that the output must match, in the part `phase` if that is set, `client` the API key or address of the request's
    sender. `totals` counts processors' actions on it. With `max_rewind`, a finish reason that a token has set is final
    once processors have seen the token; without it, once the grammar has read the token.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    selection: Selection
    max_tokens: int
    stop_token_ids: frozenset[int]
    pooling: str | None = None
    grammar: str | None = None
    phase: Phase | None = None
    client: str = ""
    slot: int = NO_SLOT
    num_computed: int = 0
    output_token_ids: list[int] = field(default_factory=ReadOnlyList)
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_known_blocks: int = 0
    num_cached_tokens: int | None = None
    was_preempted: bool = False
    scheduled_at: float | None = None
    finish_reason: str | None = None
    stop_reason: int | ProcessorStop | None = None
    totals: ActionTotals = field(default_factory=ActionTotals)
    max_rewind: int = 0
    withheld: WithheldSteps = field(default_factory=WithheldSteps)
    num_rewinds: int = 0
    num_taken_back: int = 0
    bans: dict[int, frozenset[int]] = field(default_factory=dict)
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def from_request(cls, request: AddRequest, eos_token_ids: tuple[int, ...], max_model_len: int) -> Sequence:
        """Returns the sequence of a request; it ends at the latest when the context is full.

        Raises ValueError for a prompt without a known kind of pooling.
        """
        if request.pooling is not None:
            return cls._pooled(request, request.pooling.kind)
        params = request.params
        room = max_model_len - len(request.prompt_token_ids)
        stops = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else set(eos_token_ids))
        if request.grammar is not None:
            # Processors may check whether the output is constrained.
            params = msgspec.structs.replace(params, guided_decoding=GuidedDecodingParams(grammar=request.grammar))
        return cls(
            request_id=request.request_id,
            prompt_token_ids=ReadOnlyList(request.prompt_token_ids),
            params=params,
            selection=request.selection,
            max_tokens=min(params.max_tokens or room, room),
            stop_token_ids=frozenset(stops),
            grammar=request.grammar,
            phase=request.phase,
            client=request.client,
        )

    @classmethod
    def _pooled(cls, request: AddRequest, kind: str | None) -> Sequence:
        if kind not in POOLINGS:
            raise ValueError(f"pooling: {kind!r} is none of {', '.join(POOLINGS)}")
        return cls(
            request_id=request.request_id,
            prompt_token_ids=ReadOnlyList(request.prompt_token_ids),
            params=request.params,
            selection=request.selection,
            max_tokens=0,
            stop_token_ids=frozenset(),
            pooling=kind,
            client=request.client,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def needs_whole_prompt(self) -> bool:
        """True if every token of the prompt must be computed, for its logprobs or hidden state."""
        if self.pooling is not None:
            return POOLINGS[self.pooling].every_row
        return self.needs_prompt_logprobs

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True if its prompt's log probabilities are requested, and not computed yet: it never had a token."""
        return self.params.prompt_logprobs is not None and not self.output_token_ids and not self.num_rewinds

    @property
    def prompt_token_cost(self) -> int:
        """Tokens of a step's budget charged per prompt token."""
        return LOGPROBS_COST if self.needs_prompt_logprobs else 1

    @property
    def ends_next(self) -> bool:
        """True if nothing follows the next token: it is the last one by length, or the last one is there already."""
        return self.finish_reason is not None or len(self.output_token_ids) + 1 >= self.max_tokens

    @property
    def entry_id(self) -> str:
        """Its id to processors, to which a rewound sequence is a new one."""
        return f"{self.request_id}~{self.num_rewinds}" if self.num_rewinds else self.request_id

    @property
    def dropped_draws(self) -> int:
        """Number of tokens that were sampled and are not in the output."""
        return self.num_taken_back + self.num_rewinds

    def token_ids_between(self, start: int, end: int) -> list[int]:
        """Returns the tokens at positions `start` … `end - 1` of prompt and output."""
        prompt_len = len(self.prompt_token_ids)
        if start >= prompt_len:
            return self.output_token_ids[start - prompt_len : end - prompt_len]
        if end <= prompt_len:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - prompt_len]

    def append(self, token: int) -> None:
        """Appends a sampled token; sets the finish reason if it is the last, where "stop" precedes "length"."""
        list.append(self.output_token_ids, token)
        if token in self.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish_reason = "length"

    def stop(self, reason: ProcessorStop) -> None:
        """Sets the end that a logits processor has asked for."""
        self.finish_reason, self.stop_reason = "stop", reason

    def rewind(self, rewind: Rewind, names: Collection[str] = ()) -> None:
        """Takes back output tokens, and bans tokens at the place of the first one; the sequence has not ended then.

        names: of the processors that asked for it.
        """
        place = len(self.output_token_ids) - rewind.count
        # A new list: processors distinguish requests by its identity.
        self.output_token_ids = ReadOnlyList(self.output_token_ids[:place])
        self.finish_reason = self.stop_reason = None
        self.num_rewinds += 1
        self.num_taken_back += rewind.count
        # Bans hold for the tokens before them, which have changed for later places, and stay for earlier ones.
        earlier = {at: banned for at, banned in self.bans.items() if place - MAX_REWIND <= at <= place}
        self.bans = {**earlier, place: earlier.get(place, frozenset()) | rewind.ban}
        self.withheld.take_back(rewind.count, names)
        self.totals.rewindable = len(self.withheld)

    def complete(self) -> None:
        """Sets the finish reason "stop": the grammar is complete. This takes precedence over "length"."""
        self.finish_reason = "stop"


@dataclass(slots=True)
class ScheduledChunk:
    """Tokens `start` … `start + num_tokens - 1` of a sequence; `start` is its `num_computed` at creation.

    `samples` is True if they reach the sequence's last token, so that a new one is sampled; `pools` if they do in a
    pooled prompt, which then ends. `cost` is the number of tokens charged to the step's budget.
    `draft` are tokens of the kind `draft_kind` that may follow; the step computes them, too, and `accepted` of them
    were sampled. `goes_ahead` is True if the next token has its place in a block and may be computed before the host
    knows it. `over` is True once processors have taken back tokens of the sequence: it continues in a later step.
    """

    sequence: Sequence
    num_tokens: int
    draft: list[int] = field(default_factory=list)
    draft_kind: str = ""
    accepted: int = 0
    over: bool = False
    goes_ahead: bool = False
    start: int = field(init=False)
    cost: int = field(init=False)
    samples: bool = field(init=False)
    pools: bool = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.sequence.num_computed
        self.cost = 1 if self.num_tokens == 1 else self.num_tokens * self.sequence.prompt_token_cost
        reaches_end = self.start + self.num_tokens == self.sequence.num_tokens
        self.pools = reaches_end and self.sequence.pooling is not None
        self.samples = reaches_end and not self.pools
