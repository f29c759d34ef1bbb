"""A request in flight: its completions and the caller who waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from fastdeploy_lp.engine.completion import Completion
from fastdeploy_lp.engine.errors import EngineDeadError, RequestFailedError
from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.sequence_times import SequenceTimes
from fastdeploy_lp.outputs import CompletionDelta, CompletionOutput, Logprob, RequestOutput


class Generation:
    """What the engine feeds and one caller reads, as deltas (`async for`) or as a whole (`result`).

    With `stream` False the caller is woken once, at the end. `serial` tells generations of one engine apart, `times`
    has one entry a completion, and `processors` names the logits processors that the request uses.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        completions: Sequence[Completion],
        *,
        stream: bool,
        on_close: Callable[[Generation], None],
        processors: Sequence[str] = (),
    ) -> None:
        self.request_id = request_id
        self.serial = 0
        self.prompt = prompt
        self.completions = list(completions)
        arrival = time.monotonic()
        self.times = [SequenceTimes(arrival) for _ in self.completions]
        self.processors = list(processors)
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._stream = stream
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: EngineDeadError | RequestFailedError | None = None

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.finish_reason is not None for completion in self.completions)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were found in the prefix cache: by the first completion, which runs first."""
        return self.completions[0].num_cached_tokens

    def notify(self) -> None:
        """Completions were fed."""
        if self._stream or self.finished:
            self._wake()

    def fail(self, error: EngineDeadError | RequestFailedError) -> None:
        """End the request with an error."""
        self._error = error
        self._wake()

    def abort(self) -> None:
        """End what still runs, with the reason "abort" for the reader."""
        for completion in self.completions:
            completion.finish_reason = completion.finish_reason or "abort"
        self._on_close(self)
        self._wake()

    def close(self) -> None:
        """Nobody reads any more: what still runs is aborted."""
        self._on_close(self)

    async def deltas(self) -> AsyncGenerator[list[CompletionDelta], None]:
        """What is new, as it comes; leaving early aborts the request. Raises what `fail` was given."""
        try:
            open_completions = list(self.completions)
            while open_completions:
                await self._wait()
                if self._error is not None:
                    raise self._error
                deltas = [delta for each in open_completions if (delta := each.take_delta()) is not None]
                ended = {delta.index for delta in deltas if delta.finish_reason is not None}
                if ended:
                    open_completions = [each for each in open_completions if each.index not in ended]
                if deltas:
                    yield deltas
        finally:
            self.close()

    async def result(self) -> RequestOutput:
        """The whole answer; raises as `deltas` does."""
        outputs = [CompletionOutput(completion.index, "", []) for completion in self.completions]
        async with aclosing(self.deltas()) as batches:
            async for deltas in batches:
                for delta in deltas:
                    outputs[delta.index].extend(delta)
        return RequestOutput(
            self.request_id,
            self.prompt.text,
            self.prompt.token_ids,
            outputs,
            finished=True,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        # A future of our own: asyncio.Event costs as much as all the rest that is done for a token here.
        if not self._news:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._news = False
