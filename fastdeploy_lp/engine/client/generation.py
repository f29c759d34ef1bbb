"""A request in flight: its completions and their delivery to one caller."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from fastdeploy_lp.engine.client.completion import Completion
from fastdeploy_lp.engine.client.news import News
from fastdeploy_lp.engine.client.token_details import PromptLogprobs
from fastdeploy_lp.engine.client.work import Work
from fastdeploy_lp.engine.errors import EngineDeadError, RequestFailedError, discreet
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.request.outputs import (
    NO_DRAFTS,
    CompletionDelta,
    CompletionOutput,
    DraftedTokens,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from fastdeploy_lp.request.sampling_params import RequestOutputKind


class Generation(Work):
    """The output of one request, read by one caller as deltas, as growing outputs, or as a whole (`result`).

    A caller waits for deltas (`deltas`), or listens (`listen`) and takes them itself (`take_deltas`). With `stream`
    False the caller wakes once, at the end. secret: names of processors that its client must not learn of.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        completions: Sequence[Completion],
        *,
        stream: bool,
        on_close: Callable[[Work], None],
        processors: Sequence[str] = (),
        max_tokens: int | None = None,
        secret: Sequence[str] = (),
    ) -> None:
        super().__init__(request_id, prompt, len(completions), on_close, processors, max_tokens)
        self.completions = list(completions)
        self.arrival_time = time.time()
        self._secret = secret
        self._ended: float | None = None
        self.prompt_logprobs: Sequence[dict[int, Logprob] | None] | None = None
        self._stream = stream
        self._untold = self.completions
        self._news = News()
        self._listener: Callable[[], None] = self._news.arrive

    @property
    def sequences(self) -> Sequence[Completion]:
        """The completions."""
        return self.completions

    @property
    def drafted(self) -> DraftedTokens:
        """Draft tokens of all completions."""
        return sum((completion.drafted for completion in self.completions), NO_DRAFTS)

    @property
    def num_untold_tokens(self) -> int:
        """Tokens that the caller has not read yet."""
        return sum(completion.num_untold_tokens for completion in self.completions)

    def take(self, index: int, step: SequenceStep) -> None:
        """Adds a step's tokens to a completion; raises ReplayError, and any exception of the tokenizer."""
        completion = self.completions[index]
        if step.prompt_logprobs is not None:
            self.prompt_logprobs = PromptLogprobs(step.prompt_logprobs, completion.tokenizer)
        if step.drafted:
            completion.drafted += DraftedTokens(step.drafted, step.accepted)
        completion.feed(
            step.token_ids,
            step.finish_reason,
            step.stop_reason,
            step.logprobs,
            trace=step.trace,
            shadows=step.shadows,
            emitted=step.emitted,
        )
        if completion.finish_reason is not None and self.finished:
            self._ended = time.monotonic()

    def notify(self) -> None:
        """Wakes the caller after completions received tokens, if it streams or all have ended."""
        if self._stream or self._ended is not None:
            self._listener()

    def fail(self, error: EngineDeadError | RequestFailedError) -> None:
        """Ends the request with an error, which names no secret processor."""
        self._error = discreet(error, self._secret)
        self._listener()

    def abort(self) -> None:
        """Ends the running completions with the finish reason "abort"."""
        for completion in self.completions:
            completion.finish_reason = completion.finish_reason or "abort"
        self._ended = time.monotonic()
        self._on_close(self)
        self._listener()

    def begin_again(self) -> None:
        """Resets the running completions to their first token: another worker computes them again."""
        for completion, times in zip(self.completions, self.times, strict=True):
            if completion.finish_reason is None:
                completion.begin_again()
                if not completion.num_told_tokens:
                    times.begin()

    async def deltas(self) -> AsyncGenerator[list[CompletionDelta], None]:
        """Yields new deltas as they arrive; closing early aborts the request. Raises the error passed to `fail`."""
        try:
            while not self.is_told:
                await self._news.wait()
                if deltas := self.take_deltas():
                    yield deltas
        finally:
            self.close()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every step with news of this request, until `close`; it must not raise.

        The call is part of the engine's pass over the step.
        """
        self._listener = listener

    def close(self) -> None:
        """Aborts what still runs: the caller has stopped reading."""
        self._listener = self._news.arrive
        super().close()

    def take_deltas(self) -> list[CompletionDelta]:
        """Returns what is new since the last call; raises the error passed to `fail`."""
        if self._error is not None:
            raise self._error
        deltas = [delta for each in self._untold if (delta := each.take_delta()) is not None]
        for delta in deltas:
            if delta.finish_reason is not None:
                self._untold = [each for each in self._untold if each.index != delta.index]
        return deltas

    @property
    def is_told(self) -> bool:
        """True once the last delta of every completion was taken."""
        return not self._untold

    async def outputs(
        self, kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the growing output as separate copies; closing early aborts the request. Raises as `deltas` does.

        With kind DELTA, an output holds the completions that grew, each with its new part only.
        """
        completions = [CompletionOutput(completion.index, "", []) for completion in self.completions]
        async with aclosing(self.deltas()) as batches:
            async for deltas in batches:
                for delta in deltas:
                    completions[delta.index].extend(delta)
                finished = all(each.finish_reason is not None for each in completions)
                if kind is RequestOutputKind.DELTA:
                    yield self._output([_gained(delta) for delta in deltas], finished=finished)
                elif finished:
                    yield self._output(completions, finished=True)
                elif kind is RequestOutputKind.CUMULATIVE:
                    yield self._output([each.snapshot() for each in completions], finished=False)

    async def result(self) -> RequestOutput:
        """Returns the whole output; raises as `deltas` does."""
        async with aclosing(self.outputs(RequestOutputKind.FINAL_ONLY)) as outputs:
            return await anext(outputs)

    @property
    def metrics(self) -> RequestMetrics:
        """Times of the request's arrival, first token and end."""

        def since_1970(moment: float | None) -> float | None:
            return None if moment is None else self.arrival_time + (moment - self.times[0].arrival)

        first_token = min((each.first_token for each in self.times if each.first_token is not None), default=None)
        return RequestMetrics(self.arrival_time, since_1970(first_token), since_1970(self._ended))

    def _output(self, completions: list[CompletionOutput], *, finished: bool) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.prompt.text,
            self.prompt.token_ids,
            completions,
            finished=finished,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=self.prompt_logprobs,
            metrics=self.metrics,
            drafted=self.drafted,
        )


def _gained(delta: CompletionDelta) -> CompletionOutput:
    """Returns a delta as a separate output."""
    output = CompletionOutput(delta.index, "", [])
    output.extend(delta)
    return output
