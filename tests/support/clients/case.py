"""One option of a body: what is sent, and how to tell that it did something."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from support.clients.answer import Answer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Route = Literal["/v1/chat/completions", "/v1/completions"]
USER: list[dict[str, Any]] = [{"role": "user", "content": "Hello!"}]
PROMPT = "the dog sleeps"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": "default", "messages": USER, "temperature": 0, "max_tokens": 8},
    COMPLETIONS: {"model": "default", "prompt": PROMPT, "temperature": 0, "max_tokens": 8},
}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
# More than any scripted text has.
SCRIPTED_TOKENS = 300


class Asker(Protocol):
    """For checks that compare an answer with another one."""

    def answer(self, **fields: Any) -> Answer:
        """A plain answer to the same route's base body with these fields."""

    def encode(self, text: str) -> list[int]:
        """The served model's tokens."""


@dataclass(frozen=True)
class Case:
    """`option` is sent as one of `fields`, on top of the base body; with `says` the model says just this text.

    `streamed` False or True: only sent without or with `stream`.
    """

    option: str
    fields: dict[str, Any]
    check: Callable[[Answer, Asker], None] = field(repr=False)
    says: str | None = None
    streamed: bool | None = None

    def __post_init__(self) -> None:
        if self.option not in self.fields:
            raise ValueError(f"{self.option} is no field of its own case")

    def body(self, route: str, asker: Asker) -> dict[str, Any]:
        """What is sent without `stream`, if that is allowed."""
        script: dict[str, Any] = {}
        if self.says is not None:
            forced = {"forced_tokens": asker.encode(self.says)}
            script = {"max_tokens": SCRIPTED_TOKENS, "logits_processors_args": forced}
        return BASE[route] | script | self.fields

    @property
    def name(self) -> str:
        """Tells it apart from others of its option."""
        return f"{self.option}-{json.dumps(self.fields[self.option], ensure_ascii=False)[:40]}"


def same_as_ever(answer: Answer, asker: Asker) -> None:
    """The option is taken and changes nothing."""
    assert answer == asker.answer()


def another_text(answer: Answer, asker: Asker) -> None:
    """The option changes what is said."""
    assert answer.texts != asker.answer().texts


def text_is(expected: str) -> Callable[[Answer, Asker], None]:
    """The choice reads so."""

    def check(answer: Answer, _: Asker) -> None:
        assert answer.choice.text == expected

    return check


def num_tokens_is(expected: int, reason: str) -> Callable[[Answer, Asker], None]:
    """The choice ends there, for this reason."""

    def check(answer: Answer, _: Asker) -> None:
        assert (answer.num_output_tokens, answer.choice.finish_reason) == (expected, reason)

    return check


def prompt_is(expected: str) -> Callable[[Answer, Asker], None]:
    """The model was given these tokens; needs `return_token_ids`."""

    def check(answer: Answer, asker: Asker) -> None:
        assert answer.prompt_token_ids == asker.encode(expected)
        assert answer.num_prompt_tokens == len(answer.prompt_token_ids)

    return check


def prompt_has(count: int) -> Callable[[Answer, Asker], None]:
    """The usage counts so many tokens of the prompt."""

    def check(answer: Answer, _: Asker) -> None:
        assert answer.num_prompt_tokens == count

    return check


def prompt_is_cut(first: int, last: int) -> Callable[[Answer, Asker], None]:
    """The model was given the first or the last tokens of the base body's prompt; needs `return_token_ids`."""

    def check(answer: Answer, asker: Asker) -> None:
        whole = asker.answer(return_token_ids=True).prompt_token_ids
        assert first + last < len(whole)
        assert answer.prompt_token_ids == whole[:first] + whole[len(whole) - last :]

    return check


def tokens_are(*expected: int) -> Callable[[Answer, Asker], None]:
    """The choice has these tokens; needs `return_token_ids`."""

    def check(answer: Answer, _: Asker) -> None:
        assert answer.choice.token_ids == list(expected)

    return check
