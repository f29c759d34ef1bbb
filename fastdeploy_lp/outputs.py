"""What a finished or running request gives back to its caller."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's `n` completions.

    `token_ids` holds the sampled tokens, a final end-of-sequence token included; `text` leaves special tokens and the
    stop string out. `finish_reason` is "stop", "length" or "abort", None while running.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt; `outputs` is the first completion, `completions` holds all `n` of them."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False

    @property
    def outputs(self) -> CompletionOutput:
        """The first completion, as upstream names it."""
        return self.completions[0]


@dataclass(slots=True)
class CompletionDelta:
    """What a completion gained since its last delta; a finishing delta carries the reasons."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
