"""From the completions of one prompt to their choices in the answer, whole or chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.openai.best_of import best_of
from fastdeploy_lp.entrypoints.openai.echo import Echo, PromptPositions, most_likely
from fastdeploy_lp.entrypoints.openai.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    completion_logprobs,
    prompt_logprobs,
)
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest, TextChoice
from fastdeploy_lp.entrypoints.openai.protocol.trace import shadow_body, trace_body
from fastdeploy_lp.entrypoints.openai.serving import told_reason
from fastdeploy_lp.outputs import CompletionDelta, CompletionOutput, Logprob, RequestOutput
from fastdeploy_lp.trace import TokenTrace

Gained = TypeVar("Gained", CompletionDelta, CompletionOutput)


class CompletionReader:
    """Reads the completions of one prompt, whose choices are numbered from `first_index` on."""

    def __init__(self, tokenizer: Tokenizer, request: CompletionRequest, prompt: Prompt, first_index: int) -> None:
        self._request = request
        self._prompt = prompt
        self.first_index = first_index
        self._begun: set[int] = set()
        # Deltas that came before the logprobs of the prompt, which stand before them.
        self._waiting: list[CompletionDelta] = []
        self._echo: Echo | None = None
        if request.echo:
            skip = request.skip_special_tokens is not False
            self._echo = Echo.of(prompt, tokenizer, skip_special_tokens=skip)

    def is_plain(self, index: int) -> bool:
        """Whether the completion's deltas of text are nothing but that from now on."""
        asks_for_text = not self._request.return_token_ids and not self._request.is_traced
        return asks_for_text and (self._echo is None or index in self._begun)

    def choices(self, output: RequestOutput) -> list[TextChoice]:
        """Of whole completions."""
        found = output.completions
        if self._request.chooses:
            found = best_of(found, self._request.n or 1)
        return [self._choice(each, output.prompt_logprobs, with_prompt=True) for each in found]

    def num_tokens(self, gained: CompletionDelta | CompletionOutput) -> int:
        """Output tokens that count as such."""
        return 0 if self._request.only_echoes else len(gained.token_ids)

    def chunks(self, delta: CompletionDelta, positions: PromptPositions | None) -> Iterator[TextChoice]:
        """What a delta adds, and what waited for the prompt's log probabilities `positions`, None until they come."""
        self._waiting.append(delta)
        # A completion that was aborted before its prompt was computed ends without them.
        awaited = self._echo is not None and self._request.logprobs is not None and positions is None
        if awaited and delta.finish_reason is None:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            yield self._choice(each, positions, with_prompt=each.index not in self._begun)
            self._begun.add(each.index)

    def _choice(self, gained: Gained, positions: PromptPositions | None, *, with_prompt: bool) -> TextChoice:
        if self._request.only_echoes:
            gained = _nothing(gained)
        echoed = self._echo.text if self._echo is not None and with_prompt else ""
        return TextChoice(
            index=self.first_index + gained.index,
            text=echoed + gained.text,
            logprobs=self._logprobs(gained, positions, with_prompt=with_prompt),
            finish_reason=gained.finish_reason,
            stop_reason=told_reason(gained.stop_reason, self._request),
            prompt_logprobs=self._prompt_logprobs(positions),
            prompt_token_ids=self._prompt.token_ids if self._request.return_token_ids and with_prompt else None,
            token_ids=gained.token_ids if self._request.return_token_ids else None,
            logits_processors_trace=trace_body(gained.logits_processors_trace),
            logits_processors_shadow=shadow_body(gained.logits_processors_shadow) if gained.finish_reason else None,
        )

    def _logprobs(
        self, gained: CompletionDelta | CompletionOutput, positions: PromptPositions | None, *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        count = self._request.logprobs
        if count is None:
            return None
        own = completion_logprobs(gained.logprobs, gained.text_offsets)
        if self._echo is None or own is None:
            return own
        own = self._echo.shifted(own)
        return self._echo.logprobs(positions or [], count).followed_by(own) if with_prompt else own

    def _prompt_logprobs(self, positions: PromptPositions | None) -> PromptLogprobs | None:
        """To echo with more of them than were asked for here may be there."""
        count = self._request.prompt_logprobs
        if count is None or positions is None:
            return None
        return prompt_logprobs([None if each is None else most_likely(each, count) for each in positions])


def _nothing(gained: Gained) -> Gained:
    """What is left of the one token that the engine samples behind a prompt that is only echoed."""
    logprobs = None if gained.logprobs is None else list[dict[int, Logprob]]()
    reason = gained.finish_reason and "length"
    trace = None if gained.logits_processors_trace is None else list[TokenTrace]()
    return replace(
        gained,
        text="",
        token_ids=[],
        logprobs=logprobs,
        text_offsets=[],
        finish_reason=reason,
        stop_reason=None,
        logits_processors_trace=trace,
        logits_processors_shadow=None,
    )
