"""What a finished or running request gives back to its caller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


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

    def extend(self, delta: CompletionDelta) -> None:
        """Take what is new."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt; `outputs` is the first completion, `completions` holds all `n` of them.

    `num_cached_tokens` of the prompt's tokens were found in the prefix cache and not computed for this request.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0

    def snapshot(self) -> RequestOutput:
        """A copy that does not grow with this one."""
        completions = [replace(each, token_ids=list(each.token_ids)) for each in self.completions]
        return replace(self, completions=completions)

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
