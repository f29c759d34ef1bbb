"""A sequence's chunk of the next step."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastdeploy_lp.worker.sequence import Sequence


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
