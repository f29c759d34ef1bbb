"""Steps of a sequence whose tokens processors may still take back."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from fastdeploy_lp.messages import PackedLogprobs, SequenceStep, StageTrace
from fastdeploy_lp.request.trace import PROCESSOR, TOOK_BACK


class WithheldSteps:
    """The latest steps of a sequence, oldest first, which are sent once nothing can take their tokens back.

    Each has one token; len: their number. What a step says beyond its token is taken back with it, except the prompt's
    log probabilities, and the rewinds to its place in a trace: the next step has them.
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
