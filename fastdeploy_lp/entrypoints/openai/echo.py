"""The echoed prompt before its completions."""

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
    """The prompt's text, its tokens, and the offset of each token in the text."""

    text: str
    tokens: list[str]
    offsets: list[int]

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Echo:
        """Returns the echo of a prompt: its text as received, or its decoded token ids."""
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
        """Returns the prompt's logprobs, each with the `count` most likely tokens; the first token has none."""
        first = CompletionLogprobs(
            tokens=self.tokens[:1], token_logprobs=[None], top_logprobs=[None], text_offset=self.offsets[:1]
        )
        known = [most_likely(position, count) for position in positions if position is not None]
        rest = completion_logprobs(known, self.offsets[1:])
        return first if rest is None else first.followed_by(rest)

    def entries(self, positions: PromptPositions, count: int) -> Iterator[tuple[str, dict[int, Logprob] | None]]:
        """Yields each token's text and its logprobs; only the first token if `positions` is empty."""
        for token, position in zip(self.tokens, positions or [None], strict=False):
            yield token, None if position is None else most_likely(position, count)

    def shifted(self, logprobs: CompletionLogprobs) -> CompletionLogprobs:
        """Returns a completion's logprobs with offsets into the prompt and the completion together."""
        moved = [offset + len(self.text) for offset in logprobs.text_offset]
        return logprobs.model_copy(update={"text_offset": moved})


def most_likely(position: dict[int, Logprob], count: int) -> dict[int, Logprob]:
    """Returns the actual token at the position, and the other tokens of rank `count` or better."""
    (own, *others) = position.items()
    return dict([own, *((token, logprob) for token, logprob in others if logprob.rank <= count)])
