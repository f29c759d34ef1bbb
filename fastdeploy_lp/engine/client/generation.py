"""A generation in flight: its completions, with text and stop strings, and their delivery to one caller."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastdeploy_lp.engine.client.token_details import PromptLogprobs, SpelledLogprobs, count_shadows, spelled_trace
from fastdeploy_lp.engine.client.work import News, Work
from fastdeploy_lp.engine.errors import EngineDeadError, RequestFailedError, discreet
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import SequenceStep, ShadowTokens, StageTrace, TokenLogprobs
from fastdeploy_lp.request.outputs import (
    NO_DRAFTS,
    CompletionDelta,
    CompletionOutput,
    DraftedTokens,
    Logprob,
    ProcessorOutputs,
    ProcessorStop,
    RequestMetrics,
    RequestOutput,
    StopCause,
)
from fastdeploy_lp.request.sampling_params import RequestOutputKind, SamplingParams
from fastdeploy_lp.request.trace import ShadowReport, TokenTrace


class ReplayError(Exception):
    """A restarted request did not repeat the tokens already sent to its caller."""

    def __init__(self) -> None:
        super().__init__("the worker ended in the middle of this answer, and the answer of the next one differs")


class Completion:
    """Collects the tokens of one of a request's `n` completions and returns them as deltas.

    Text that may be the beginning of a stop string is held back. A stop string that ends before the `min_tokens`-th
    token does is ordinary text. `logprobs` adds the log probabilities of each token; `trace` adds the traces that
    the worker sends. `num_cached_tokens` counts the prompt tokens that this completion found in the prefix cache,
    `drafted` the draft tokens that were verified for it. The `secret` processors are left out of traces, values and
    stop reasons. The stop string or the text of the stop token at the end of the output is cut off unless
    `include_stop`. A delta has at least `stream_interval` tokens, but for the first and the last one.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str],
        *,
        min_tokens: int = 0,
        logprobs: bool = False,
        trace: bool = False,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        secret: Collection[str] = (),
        stream_interval: int = 1,
    ) -> None:
        self.index = index
        self.num_cached_tokens = 0
        self.drafted = NO_DRAFTS
        self.tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._secret = frozenset(secret)
        self._stream_interval = stream_interval
        self._stop_strings = list(stop_strings)
        self._held_back = max((len(stop) for stop in stop_strings), default=1) - 1
        self._min_tokens = min_tokens
        self._wants_logprobs = logprobs
        self._wants_trace = trace
        self._sent_text = 0
        self._sent_tokens = 0
        self._told_token_ids: list[int] = []
        self._begin()

    def begin_again(self) -> None:
        """Resets to the state before the first token: another worker computes the completion again.

        Tokens already sent in deltas must repeat exactly; they are not sent again.
        """
        if len(self._token_ids) >= self._sent_tokens:
            self._told_token_ids = self._token_ids[: self._sent_tokens]
        self._begin()

    def _begin(self) -> None:
        self._decoder = self.tokenizer.decode_stream(skip_special_tokens=self._skip_special_tokens)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = [] if self._wants_logprobs else None
        self._text_offsets: list[int] = []
        self._trace: list[TokenTrace] | None = [] if self._wants_trace else None
        self._shadows: dict[str, ShadowReport] = {}
        # Emitted values that are not yet in a delta.
        self._outputs: ProcessorOutputs = {}
        self._text = ""
        self.finish_reason: str | None = None
        self.stop_reason: StopCause | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens received so far."""
        return len(self._token_ids)

    @property
    def num_told_tokens(self) -> int:
        """Tokens sent in deltas."""
        return self._sent_tokens

    @property
    def num_untold_tokens(self) -> int:
        """Tokens not yet sent in a delta."""
        return max(len(self._token_ids) - self._sent_tokens, 0)

    @property
    def token_ids(self) -> list[int]:
        """A copy of the tokens received so far."""
        return list(self._token_ids)

    def feed(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | ProcessorStop | None,
        logprobs: Sequence[TokenLogprobs] | None = None,
        *,
        trace: Sequence[Sequence[StageTrace]] | None = None,
        shadows: Sequence[ShadowTokens] | None = None,
        emitted: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Adds the tokens that a step sampled; tokens after a stop string are dropped.

        The other sequences have one entry per token, except `emitted`: the processor and the JSON of each value of the
        step. Raises ReplayError if a restarted completion does not repeat the tokens already sent.
        """
        if emitted and self.finish_reason is None and len(self._token_ids) >= len(self._told_token_ids):
            for name, value in emitted:
                if name not in self._secret:
                    self._outputs.setdefault(name, []).append(json.loads(value))
        has_details = logprobs is not None or trace is not None or shadows is not None
        for place, token_id in enumerate(token_ids):
            if self.finish_reason is not None:
                break
            if self._told_token_ids:
                self._require_as_told(token_id)
            self._token_ids.append(token_id)
            if has_details:
                self._add_details(place, token_id, logprobs, trace, shadows)
            # The stop reason applies to the last token only.
            is_stop_token = isinstance(stop_reason, int) and place == len(token_ids) - 1
            if not is_stop_token or self._include_stop:
                self._extend_text(self._decoder.push(token_id))
        if finish_reason is not None:
            self._finish(finish_reason, stop_reason)
        if self.finish_reason is not None and len(self._token_ids) < len(self._told_token_ids):
            raise ReplayError

    def _add_details(
        self,
        place: int,
        token_id: int,
        logprobs: Sequence[TokenLogprobs] | None,
        trace: Sequence[Sequence[StageTrace]] | None,
        shadows: Sequence[ShadowTokens] | None,
    ) -> None:
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.append(logprobs[place])
            self._text_offsets.append(len(self._text))
        if shadows is not None:
            count_shadows(self._shadows, token_id, shadows[place])
        if self._trace is not None and trace is not None:
            shadow = None if shadows is None else shadows[place]
            stages = [stage for stage in trace[place] if stage.name not in self._secret]
            self._trace.append(spelled_trace(token_id, stages, shadow, self.tokenizer))

    def _finish(self, finish_reason: str, stop_reason: int | ProcessorStop | None) -> None:
        if self.finish_reason is None:
            cut = isinstance(stop_reason, int) and not self._include_stop
            self._flush_text(self._token_ids[:-1] if cut else self._token_ids)
        # The flushed rest may complete a stop string; otherwise the worker's reason applies.
        if self.finish_reason is None:
            by_secret = isinstance(stop_reason, dict) and stop_reason["processor"] in self._secret
            self.finish_reason, self.stop_reason = finish_reason, None if by_secret else stop_reason

    def take_delta(self) -> CompletionDelta | None:
        """Returns what is new since the last call, or None if there is nothing to send yet."""
        finished = self.finish_reason is not None
        if self._sent_tokens and len(self._token_ids) - self._sent_tokens < self._stream_interval and not finished:
            return None
        end = len(self._text)
        if self._held_back and not finished:
            end = max(end - self._held_back, self._sent_text)
        text, token_ids = self._text[self._sent_text : end], self._token_ids[self._sent_tokens :]
        # Tokens wait for their text, unless there is no tokenizer.
        if not finished and not text and (self.tokenizer.handles_text or not token_ids):
            return None
        delta = CompletionDelta(self.index, text, token_ids, self.finish_reason, self.stop_reason)
        if self._logprobs is not None:
            new = self._logprobs[self._sent_tokens :]
            delta.logprobs = SpelledLogprobs(new, self.tokenizer)
            delta.gained_logprob = sum(position.logprobs[0] for position in new)
            # A token after the beginning of a stop string gets the end of the remaining text as its offset.
            delta.text_offsets = [min(offset, len(self._text)) for offset in self._text_offsets[self._sent_tokens :]]
        if self._trace is not None:
            delta.logits_processors_trace = self._trace[self._sent_tokens :]
        if self._shadows:
            delta.logits_processors_shadow = {name: replace(report) for name, report in self._shadows.items()}
        if self._outputs:
            delta.logits_processors_outputs, self._outputs = self._outputs, {}
        self._sent_text, self._sent_tokens = end, len(self._token_ids)
        return delta

    def _require_as_told(self, token_id: int) -> None:
        place = len(self._token_ids)
        if place < len(self._told_token_ids) and self._told_token_ids[place] != token_id:
            raise ReplayError

    def _extend_text(self, piece: str) -> None:
        if not piece:
            return
        before = len(self._text)
        self._text += piece
        if not self._stop_strings or len(self._token_ids) <= self._min_tokens:
            return
        # A match must end in the new text.
        hits = [(self._text.find(stop, max(before - len(stop) + 1, 0)), stop) for stop in self._stop_strings]
        found = min(((at, stop) for at, stop in hits if at >= 0), default=None)
        if found is not None:
            at, stop = found
            self._text = self._text[: at + len(stop) if self._include_stop else at]
            self.finish_reason, self.stop_reason = "stop", stop

    def _flush_text(self, token_ids: Sequence[int]) -> None:
        """Adds characters that stayed incomplete, as the tokenizer decodes them."""
        whole = self.tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
        if whole.startswith(self._text):
            self._extend_text(whole[len(self._text) :])


def completions_of(
    params: SamplingParams, tokenizer: Tokenizer, secret: Collection[str] = (), *, stream_interval: int = 1
) -> list[Completion]:
    """Returns the `n` completions of one prompt; the longer one of their interval and `stream_interval` counts."""
    return [
        Completion(
            index,
            tokenizer,
            params.stop_strings,
            min_tokens=params.min_tokens,
            logprobs=params.logprobs is not None,
            trace=params.trace is not None,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            secret=secret,
            stream_interval=max(params.stream_interval or 1, stream_interval),
        )
        for index in range(params.n)
    ]


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
