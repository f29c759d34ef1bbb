"""Conversion of one prompt's completions to choices of the answer, whole or chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.openai.best_of import best_of
from fastdeploy_lp.entrypoints.openai.echo import Echo, PromptPositions, most_likely
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces
from fastdeploy_lp.entrypoints.openai.logprobs import (
    CompletionLogprobs,
    completion_logprobs,
    completion_logprobs_pieces,
    named,
    prompt_logprobs_pieces,
)
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest, TextChoice
from fastdeploy_lp.entrypoints.openai.protocol.trace import shadow_body, trace_body, trace_pieces
from fastdeploy_lp.entrypoints.openai.serving import told_reason
from fastdeploy_lp.outputs import CompletionDelta, CompletionOutput, Logprob, RequestOutput
from fastdeploy_lp.trace import TokenTrace

Gained = TypeVar("Gained", CompletionDelta, CompletionOutput)


class CompletionReader:
    """Reader of one prompt's completions, whose choices are numbered from `first_index`."""

    def __init__(self, tokenizer: Tokenizer, request: CompletionRequest, prompt: Prompt, first_index: int) -> None:
        self._request = request
        self._prompt = prompt
        self.first_index = first_index
        self._begun: set[int] = set()
        # Deltas that arrived before the prompt's logprobs, which precede them in the answer.
        self._waiting: list[CompletionDelta] = []
        self._echo: Echo | None = None
        if request.echo:
            skip = request.skip_special_tokens is not False
            self._echo = Echo.of(prompt, tokenizer, skip_special_tokens=skip)

    def is_plain(self, index: int) -> bool:
        """Returns True if further text deltas of the completion carry only text."""
        asks_for_text = not self._request.return_token_ids and not self._request.is_traced
        return asks_for_text and (self._echo is None or index in self._begun)

    def choices(self, output: RequestOutput) -> list[PiecedObject]:
        """Returns the choices of whole completions, each a `TextChoice`."""
        found = output.completions
        if self._request.chooses:
            found = best_of(found, self._request.n or 1)
        return [self._pieced_choice(each, output.prompt_logprobs) for each in found]

    def num_tokens(self, gained: CompletionDelta | CompletionOutput) -> int:
        """Returns the number of output tokens to report."""
        return 0 if self._request.only_echoes else len(gained.token_ids)

    def chunks(self, delta: CompletionDelta, positions: PromptPositions | None) -> Iterator[TextChoice]:
        """Yields the choices of a delta and of earlier deltas that waited for the prompt's logprobs.

        positions: the prompt's logprobs; None until they arrive.
        """
        self._waiting.append(delta)
        # A completion aborted before its prompt was computed ends without prompt logprobs.
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
        choice = self._short_choice(gained, with_prompt=with_prompt)
        choice.logprobs = self._logprobs(gained, positions, with_prompt=with_prompt)
        choice.logits_processors_trace = trace_body(gained.logits_processors_trace)
        return choice

    def _pieced_choice(self, completion: CompletionOutput, positions: PromptPositions | None) -> PiecedObject:
        if self._request.only_echoes:
            completion = _nothing(completion)
        members: dict[str, Pieces] = {}
        if self._request.logprobs is not None and completion.logprobs is not None:
            members["logprobs"] = self._logprobs_pieces(completion, completion.logprobs, positions)
        if self._request.prompt_logprobs is not None and positions is not None:
            members["prompt_logprobs"] = self._prompt_logprobs_pieces(positions, self._request.prompt_logprobs)
        if completion.logits_processors_trace is not None:
            members["logits_processors_trace"] = trace_pieces(completion.logits_processors_trace)
        return PiecedObject(self._short_choice(completion, with_prompt=True), members)

    def _short_choice(self, gained: CompletionDelta | CompletionOutput, *, with_prompt: bool) -> TextChoice:
        echoed = self._echo.text if self._echo is not None and with_prompt else ""
        return TextChoice(
            index=self.first_index + gained.index,
            text=echoed + gained.text,
            finish_reason=gained.finish_reason,
            stop_reason=told_reason(gained.stop_reason, self._request),
            prompt_token_ids=self._prompt.token_ids if self._request.return_token_ids and with_prompt else None,
            token_ids=gained.token_ids if self._request.return_token_ids else None,
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

    def _logprobs_pieces(
        self, completion: CompletionOutput, own: Sequence[dict[int, Logprob]], positions: PromptPositions | None
    ) -> Pieces:
        if self._echo is None:
            return completion_logprobs_pieces(named(own), completion.text_offsets)
        prompt = self._echo.entries(positions or (), self._request.logprobs or 0)
        # Without positions, only the first token is listed.
        offsets = self._echo.offsets[: len(positions or (None,))]
        shifted = [offset + len(self._echo.text) for offset in completion.text_offsets]
        return completion_logprobs_pieces(chain(prompt, named(own)), [*offsets, *shifted])

    @staticmethod
    def _prompt_logprobs_pieces(positions: PromptPositions, count: int) -> Pieces:
        """Returns the `count` most likely per position: with echo, `positions` may hold more than requested."""
        return prompt_logprobs_pieces(None if each is None else most_likely(each, count) for each in positions)


def _nothing(gained: Gained) -> Gained:
    """Returns an empty completion: for an echo-only request, the engine samples one token, which is dropped."""
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
