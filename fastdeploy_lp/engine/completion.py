"""One completion as the API process sees it: tokens become text, and text may hit a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastdeploy_lp.engine.logprobs import SpelledLogprobs
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.engine.tracing import count_shadows, spelled_trace
from fastdeploy_lp.messages import ShadowTokens, StageTrace, TokenLogprobs
from fastdeploy_lp.outputs import CompletionDelta
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.trace import ShadowReport, TokenTrace


class ReplayError(Exception):
    """A request that runs again does not repeat the tokens its caller was told."""

    def __init__(self) -> None:
        super().__init__("the worker ended in the middle of this answer, and the answer of the next one differs")


class Completion:
    """Collects the tokens of one of a request's `n` completions and gives out what is new.

    Text that could still turn out to be the beginning of a stop string is held back. Stop strings that end before the
    `min_tokens`-th token does are text like any other. With `logprobs`, each token comes with its own; with `trace`,
    with its trace as far as the worker tells of it.
    `num_cached_tokens` are the tokens of the prompt that this completion found in the prefix cache. What ends the
    output, a stop string or the text of a stop token, is cut off unless `include_stop`.
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
    ) -> None:
        self.index = index
        self.num_cached_tokens = 0
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
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
        """Forget what was fed, as before the first token: another worker computes it once more.

        Tokens that a delta has told of have to come again as they were, and are not told again.
        """
        if len(self._token_ids) >= self._sent_tokens:
            self._told_token_ids = self._token_ids[: self._sent_tokens]
        self._begin()

    def _begin(self) -> None:
        self._decoder = self._tokenizer.decode_stream(skip_special_tokens=self._skip_special_tokens)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = [] if self._wants_logprobs else None
        self._text_offsets: list[int] = []
        self._trace: list[TokenTrace] | None = [] if self._wants_trace else None
        self._shadows: dict[str, ShadowReport] = {}
        self._text = ""
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far."""
        return len(self._token_ids)

    @property
    def num_told_tokens(self) -> int:
        """Tokens that deltas have told of."""
        return self._sent_tokens

    @property
    def num_untold_tokens(self) -> int:
        """Tokens that no delta has told of."""
        return max(len(self._token_ids) - self._sent_tokens, 0)

    @property
    def token_ids(self) -> list[int]:
        """A copy of the tokens taken so far."""
        return list(self._token_ids)

    def feed(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | None,
        logprobs: Sequence[TokenLogprobs] | None = None,
        *,
        trace: Sequence[Sequence[StageTrace]] | None = None,
        shadows: Sequence[ShadowTokens] | None = None,
    ) -> None:
        """Take what a step sampled, all else being one entry a token; tokens behind a stop string are dropped.

        Raises ReplayError if a completion that began again does not repeat the tokens it has told of.
        """
        self._take(token_ids, finish_reason, stop_reason, logprobs, trace, shadows)
        if self.finish_reason is not None and len(self._token_ids) < len(self._told_token_ids):
            raise ReplayError

    def _take(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | None,
        logprobs: Sequence[TokenLogprobs] | None,
        trace: Sequence[Sequence[StageTrace]] | None,
        shadows: Sequence[ShadowTokens] | None,
    ) -> None:
        for place, token_id in enumerate(token_ids):
            if self.finish_reason is not None:
                return
            self._require_as_told(token_id)
            self._token_ids.append(token_id)
            if self._logprobs is not None and logprobs is not None:
                self._logprobs.append(logprobs[place])
                self._text_offsets.append(len(self._text))
            if shadows is not None:
                count_shadows(self._shadows, token_id, shadows[place])
            if self._trace is not None and trace is not None:
                shadow = None if shadows is None else shadows[place]
                self._trace.append(spelled_trace(token_id, trace[place], shadow, self._tokenizer))
            # The worker says so of the last token only.
            if stop_reason is None or self._include_stop or place < len(token_ids) - 1:
                self._extend_text(self._decoder.push(token_id))
        if self.finish_reason is None and finish_reason is not None:
            self._flush_text(self._token_ids if stop_reason is None or self._include_stop else self._token_ids[:-1])
            # Only now may the flushed rest complete a stop string; otherwise the worker's reason stands.
            if self.finish_reason is None:
                self.finish_reason, self.stop_reason = finish_reason, stop_reason

    def take_delta(self) -> CompletionDelta | None:
        """What is new since the last call; None when there is nothing to tell yet."""
        finished = self.finish_reason is not None
        end = len(self._text) if finished else max(len(self._text) - self._held_back, self._sent_text)
        text, token_ids = self._text[self._sent_text : end], self._token_ids[self._sent_tokens :]
        # Tokens wait for the text that they belong to, unless there never is any.
        if not finished and not text and (self._tokenizer.handles_text or not token_ids):
            return None
        delta = CompletionDelta(self.index, text, token_ids, self.finish_reason, self.stop_reason)
        if self._logprobs is not None:
            new = self._logprobs[self._sent_tokens :]
            delta.logprobs = SpelledLogprobs(new, self._tokenizer)
            delta.gained_logprob = sum(position.logprobs[0] for position in new)
            # A token behind the stop string's beginning lies at the end of what is left of the text.
            delta.text_offsets = [min(offset, len(self._text)) for offset in self._text_offsets[self._sent_tokens :]]
        if self._trace is not None:
            delta.logits_processors_trace = self._trace[self._sent_tokens :]
        if self._shadows:
            delta.logits_processors_shadow = {name: replace(report) for name, report in self._shadows.items()}
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
        if len(self._token_ids) <= self._min_tokens:
            return
        # A hit has to end in what is new.
        hits = [(self._text.find(stop, max(before - len(stop) + 1, 0)), stop) for stop in self._stop_strings]
        found = min(((at, stop) for at, stop in hits if at >= 0), default=None)
        if found is not None:
            at, stop = found
            self._text = self._text[: at + len(stop) if self._include_stop else at]
            self.finish_reason, self.stop_reason = "stop", stop

    def _flush_text(self, token_ids: Sequence[int]) -> None:
        """Characters that never became whole are shown as the tokenizer shows them."""
        whole = self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
        if whole.startswith(self._text):
            self._extend_text(whole[len(self._text) :])


def completions_of(params: SamplingParams, tokenizer: Tokenizer) -> list[Completion]:
    """The `n` completions of one prompt."""
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
        )
        for index in range(params.n)
    ]
