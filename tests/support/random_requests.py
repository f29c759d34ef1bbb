"""Requests drawn at random from a seed, in a form that every way into the engine can be given."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

VOCAB_SIZE = 512
END = 2
WORDS = ("why", "the sky", "Tell me", " of ", "é", "日本", "🙂", "\n", "x", "How do", "1, 2,")
# Pieces of what the tiny model's tokens read as, so that some are found, also across tokens.
STOPS = ("e", " th", "ing", "s ", "ow", "�", "y sy", "plain", "in a", "zzz")


@dataclass(frozen=True)
class RandomRequest:
    """`prompt` is a text, token ids or the messages of a chat; `fields` are those of SamplingParams."""

    prompt: str | list[int] | list[dict[str, str]]
    fields: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a conversation."""
        return isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)


def random_request(rng: Random) -> RandomRequest:
    """One request, greedy or with a seed of its own."""
    return RandomRequest(_prompt(rng), _fields(rng))


def _prompt(rng: Random) -> Any:
    kind = rng.randrange(3)
    if kind == 0:
        return _text(rng)
    if kind == 1:
        return [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 40))]
    roles = ["user", "assistant"] * rng.randint(0, 2) + ["user"]
    return [{"role": role, "content": _text(rng)} for role in roles]


def _text(rng: Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randint(1, 6)))


def _fields(rng: Random) -> dict[str, Any]:
    """Each field is there in some requests, most of them in few."""
    fields: dict[str, Any] = {"max_tokens": rng.randint(1, 24)}
    if rng.random() < 0.4:
        fields["temperature"] = 0
    else:
        fields |= {"temperature": rng.choice([0.5, 1, 1.7]), "seed": rng.randrange(2**63)}

    def sometimes(name: str, value: Any, share: float = 0.2) -> None:
        if rng.random() < share:
            fields[name] = value

    sometimes("n", rng.randint(2, 3))
    sometimes("top_p", rng.uniform(0.2, 1))
    sometimes("top_k", rng.randint(1, 50))
    sometimes("min_p", rng.uniform(0, 0.3))
    sometimes("repetition_penalty", rng.uniform(0.7, 1.5))
    sometimes("presence_penalty", rng.uniform(-2, 2))
    sometimes("frequency_penalty", rng.uniform(-2, 2))
    sometimes("logit_bias", {str(token): rng.uniform(-5, 5) for token in rng.sample(range(VOCAB_SIZE), 4)})
    # Otherwise few answers would reach the end-of-sequence token.
    sometimes("logit_bias", {str(END): rng.uniform(3, 9)}, 0.1)
    sometimes("stop", rng.sample(STOPS, rng.randint(1, 4)), 0.5)
    sometimes("include_stop_str_in_output", True)
    sometimes("stop_token_ids", rng.sample(range(VOCAB_SIZE), 20))
    sometimes("min_tokens", rng.randint(0, fields["max_tokens"]))
    sometimes("bad_words_token_ids", [[rng.randrange(VOCAB_SIZE)] for _ in range(20)])
    sometimes("allowed_token_ids", rng.sample(range(VOCAB_SIZE), 100))
    sometimes("ignore_eos", True)
    sometimes("skip_special_tokens", False)
    sometimes("logprobs", rng.randint(0, 4), 0.4)
    # What cannot be served has to be refused alike.
    sometimes("max_tokens", 10_000, 0.03)
    sometimes("stop_token_ids", [VOCAB_SIZE], 0.03)
    sometimes("top_p", 1.5, 0.03)
    sometimes("stream_interval", rng.randint(1, 9), 0.4)
    return fields
