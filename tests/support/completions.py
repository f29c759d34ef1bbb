"""Completions that are fed texts token by token."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st

from fastdeploy_lp.engine.client.generation import Completion
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.request.outputs import CompletionDelta

many = settings(max_examples=80)

texts = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from("abc .,\n\t"),
        st.sampled_from("🙂👩‍🚀🇫🇷한국어漢字かなéñ\u0301\u0308\u200d\ufe0fनमस्ते"),
    ),
    max_size=40,
)


def feed(completion: Completion, token_ids: Sequence[int], sizes: Sequence[int] = ()) -> list[CompletionDelta]:
    """Feed tokens in steps of these sizes (then one by one), ending with "length"; returns the deltas on the way."""
    deltas = []
    rest, size_of_step = list(token_ids), iter(sizes)
    while rest and completion.finish_reason is None:
        size = next(size_of_step, 1)
        step, rest = rest[:size], rest[size:]
        completion.feed(step, None if rest else "length", None)
        delta = completion.take_delta()
        if delta is not None:
            deltas.append(delta)
    return deltas


def joined(deltas: Sequence[CompletionDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def run(
    tokenizer: Tokenizer, text: str, stop: Sequence[str] = (), sizes: Sequence[int] = ()
) -> tuple[Completion, list[CompletionDelta]]:
    completion = Completion(0, tokenizer, stop)
    return completion, feed(completion, tokenizer.encode(text), sizes)


def as_tokens(tokenizer: Tokenizer, text: str) -> str:
    """Returns the text without what tokens cannot hold: the default model's vocabulary lacks 21 of the 256 bytes."""
    return tokenizer.decode(tokenizer.encode(text))


step_sizes = st.lists(st.integers(1, 5), max_size=20)
