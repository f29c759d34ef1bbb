"""A prompt that stands before its completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.openai.logprobs import CompletionLogprobs, completion_logprobs
from fastdeploy_lp.outputs import Logprob

PromptPositions = Sequence[dict[int, Logprob] | None]


@dataclass(frozen=True)
class Echo:
    """The prompt's text, and where in it each of its tokens begins."""

    text: str
    tokens: list[str]
    offsets: list[int]

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Echo:
        """The text as it came, or what token ids read as."""
        decoder, offsets, length = tokenizer.decode_stream(skip_special_tokens=skip_special_tokens), [], 0
        for token in prompt.token_ids:
            offsets.append(length)
            length += len(decoder.push(token))
        text = prompt.text
        if text is None:
            text = tokenizer.decode(prompt.token_ids, skip_special_tokens=skip_special_tokens)
        tokens = [tokenizer.token_text(token) for token in prompt.token_ids]
        return cls(text, tokens, [min(offset, len(text)) for offset in offsets])

    def logprobs(self, positions: PromptPositions, count: int) -> CompletionLogprobs:
        """Those of the prompt's tokens, each with the `count` most likely ones; nothing is known of the first."""
        first = CompletionLogprobs(
            tokens=self.tokens[:1], token_logprobs=[None], top_logprobs=[None], text_offset=self.offsets[:1]
        )
        known = [most_likely(position, count) for position in positions if position is not None]
        rest = completion_logprobs(known, self.offsets[1:])
        return first if rest is None else first.followed_by(rest)

    def entries(self, positions: PromptPositions, count: int) -> Iterator[tuple[str, dict[int, Logprob] | None]]:
        """Each token's text, and what is known at its position; only the first if there are no positions."""
        for token, position in zip(self.tokens, positions or [None], strict=False):
            yield token, None if position is None else most_likely(position, count)

    def shifted(self, logprobs: CompletionLogprobs) -> CompletionLogprobs:
        """A completion's logprobs, with offsets into the prompt and the completion together."""
        moved = [offset + len(self.text) for offset in logprobs.text_offset]
        return logprobs.model_copy(update={"text_offset": moved})


def most_likely(position: dict[int, Logprob], count: int) -> dict[int, Logprob]:
    """The token that stands there, and of the others those among the `count` most likely."""
    (own, *others) = position.items()
    return dict([own, *((token, logprob) for token, logprob in others if logprob.rank <= count)])
