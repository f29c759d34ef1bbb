"""One running or waiting sequence as the worker sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from fastdeploy_lp.guided_decoding.params import GuidedDecodingParams
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.read_only_list import ReadOnlyList
from fastdeploy_lp.messages import AddPooling, AddRequest
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.worker.pooling import POOLINGS

NO_SLOT = -1
# A row of logits and the most likely tokens of it, for a token of a prompt: measured, about as much as a small model.
LOGPROBS_COST = 2


@dataclass(slots=True)
class Sequence:
    """A prompt, its parameters, and what has been generated so far.

    `slot` is its row in `share_inputs`, NO_SLOT while it waits; `block_table` lists its KV-cache blocks;
    `num_computed` counts the tokens whose keys and values are in them. `block_hashes` names its full blocks as far as
    that was needed, `num_known_blocks` of which other sequences can find; `num_cached_tokens` is how much of the prompt
    was found when it was first admitted, None before; `scheduled_at` is when that was, on the monotonic clock.
    `was_preempted` says that it was in a slot before. Processors hold the two lists of tokens, which only
    `append` changes.
    `pooling` is set for a prompt that is pooled: it ends with its last token and generates nothing. `grammar` is what
    the output has to match, `client` the API key or address that the request came from.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    selection: Selection
    max_tokens: int
    stop_token_ids: frozenset[int]
    pooling: str | None = None
    grammar: str | None = None
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
    stop_reason: int | None = None

    @classmethod
    def from_request(cls, request: AddRequest, eos_token_ids: tuple[int, ...], max_model_len: int) -> Sequence:
        """The sequence that a request asks for; it ends at the latest when the context is full."""
        params = request.params
        room = max_model_len - len(request.prompt_token_ids)
        stops = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else set(eos_token_ids))
        if request.grammar is not None:
            # Processors may ask whether the output is bound to a form.
            params = msgspec.structs.replace(params, guided_decoding=GuidedDecodingParams(grammar=request.grammar))
        return cls(
            request_id=request.request_id,
            prompt_token_ids=ReadOnlyList(request.prompt_token_ids),
            params=params,
            selection=request.selection,
            max_tokens=min(params.max_tokens or room, room),
            stop_token_ids=frozenset(stops),
            grammar=request.grammar,
            client=request.client,
        )

    @classmethod
    def from_pooling(cls, request: AddPooling) -> Sequence:
        """A prompt that is pooled; raises ValueError for a kind of pooling that there is not."""
        if request.pooling not in POOLINGS:
            raise ValueError(f"pooling: {request.pooling!r} is none of {', '.join(POOLINGS)}")
        return cls(
            request_id=request.request_id,
            prompt_token_ids=ReadOnlyList(request.prompt_token_ids),
            params=SamplingParams(),
            selection=Selection(),
            max_tokens=0,
            stop_token_ids=frozenset(),
            pooling=request.pooling,
            client=request.client,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every token of the prompt has to be computed for this sequence: its logprobs or hidden states."""
        if self.pooling is not None:
            return POOLINGS[self.pooling].every_row
        return self.params.prompt_logprobs is not None and not self.output_token_ids

    @property
    def prompt_token_cost(self) -> int:
        """How many tokens of a step's budget a token of its prompt counts as."""
        wants_logprobs = self.params.prompt_logprobs is not None and not self.output_token_ids
        return LOGPROBS_COST if wants_logprobs else 1

    def token_ids_between(self, start: int, end: int) -> list[int]:
        """The tokens at positions `start` … `end - 1` of prompt and output."""
        prompt_len = len(self.prompt_token_ids)
        if start >= prompt_len:
            return self.output_token_ids[start - prompt_len : end - prompt_len]
        if end <= prompt_len:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - prompt_len]

    def append(self, token: int) -> None:
        """Take a sampled token and settle whether it is the last one; end of sequence wins over length."""
        list.append(self.output_token_ids, token)
        if token in self.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token
        elif len(self.output_token_ids) >= self.max_tokens:
            self.finish_reason = "length"

    def complete(self) -> None:
        """Its last token was the last one that its grammar has; that counts before the length."""
        self.finish_reason = "stop"
