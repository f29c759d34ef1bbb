"""Steps of a sequence whose tokens processors may still take back."""

from __future__ import annotations

from collections import deque

from fastdeploy_lp.messages import PackedLogprobs, SequenceStep


class WithheldSteps:
    """The latest steps of a sequence, oldest first, which are sent once nothing can take their tokens back.

    Each has one token; len: their number. What a step says beyond its token is taken back with it, except the prompt's
    log probabilities: the next step has them.
    """

    def __init__(self) -> None:
        self._steps: deque[SequenceStep] = deque()
        self._prompt_logprobs: PackedLogprobs | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: SequenceStep) -> None:
        """Adds the sequence's next step."""
        if self._prompt_logprobs is not None:
            step.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        self._steps.append(step)

    def take_back(self, count: int) -> None:
        """Drops the last `count` steps, which must be there."""
        for _ in range(count):
            step = self._steps.pop()
            self._prompt_logprobs = step.prompt_logprobs or self._prompt_logprobs

    def release(self, keep: int = 0) -> list[SequenceStep]:
        """Removes and returns all steps but the last `keep`."""
        return [self._steps.popleft() for _ in range(len(self._steps) - keep)]
