"""The random requests of a soak: what each asks for, and when its client leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

# Common words, about one token each, so that a number of words is about a number of tokens.
COMMON = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him"
    " been has when who will no more if out so up said what its about"
)
WORDS = COMMON.split()
MAX_WORDS, MAX_TOKENS = 300, 40
ABORTED = 0.15
PREFIXES, PREFIX_WORDS = 8, 128
LAST_BIASED_TOKEN = 400
LONGEST_EARLY_WAIT = 0.2


@dataclass(frozen=True)
class Plan:
    """One request. body: of POST /v1/chat/completions.

    leave_after_chunks: chunks with text after which the client closes its connection, 0 for the first bytes of any
    kind. leave_after_seconds: the same by time, for requests that may have no answer yet. None for a client that stays.
    """

    body: dict[str, Any]
    leave_after_chunks: int | None = None
    leave_after_seconds: float | None = None


def random_plans(count: int, seed: int) -> list[Plan]:
    """`count` plans, the same ones for the same seed."""
    source = random.Random(seed)
    prefixes = [source.choices(WORDS, k=PREFIX_WORDS) for _ in range(PREFIXES)]
    return [_random_plan(source, prefixes) for _ in range(count)]


def _random_plan(source: random.Random, prefixes: list[list[str]]) -> Plan:
    words = source.choices(WORDS, k=source.randint(1, MAX_WORDS))
    if source.random() < 0.4:
        words = (source.choice(prefixes) + words)[:MAX_WORDS]
    tokens = source.randint(1, MAX_TOKENS)
    body = chat_body(" ".join(words), tokens) | _random_sampling(source)
    if source.random() >= ABORTED:
        return Plan(body)
    if source.random() < 0.3:
        return Plan(body, leave_after_seconds=source.uniform(0.0, LONGEST_EARLY_WAIT))
    return Plan(body, leave_after_chunks=source.randint(0, tokens))


def chat_body(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A streaming, greedy request."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _random_sampling(source: random.Random) -> dict[str, Any]:
    """Greedy or sampled, and each of the other features in a fifth of the requests, so that they meet in a batch."""
    fields: dict[str, Any] = {"ignore_eos": source.random() < 0.5}
    if source.random() < 0.6:
        fields |= {"temperature": source.uniform(0.2, 1.5), "top_p": source.uniform(0.5, 1.0)}
        fields |= {"top_k": source.choice((0, 1, 50)), "seed": source.randrange(2**31)}
    if source.random() < 0.2:
        fields |= {"repetition_penalty": source.uniform(1.0, 1.5), "presence_penalty": source.uniform(-1.0, 1.0)}
        fields |= {"frequency_penalty": source.uniform(-1.0, 1.0)}
    if source.random() < 0.2:
        fields |= {"logprobs": True, "top_logprobs": source.randint(0, 5)}
    if source.random() < 0.2:
        tokens = source.sample(range(LAST_BIASED_TOKEN + 1), 8)
        fields |= {"logit_bias": {str(token): source.uniform(-5.0, 5.0) for token in tokens}}
    return fields
