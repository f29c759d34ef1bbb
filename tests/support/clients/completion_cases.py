"""Fields of text completions alone, and bodies that are refused by name."""

from __future__ import annotations

from typing import Any

from support.clients.answer import Answer
from support.clients.case import PROMPT, Asker, Case, prompt_has
from support.clients.generation_cases import GENERATION, IDS, RANDOM


def number_of_choices(count: int) -> Any:
    def check(answer: Answer, asker: Asker) -> None:
        assert len(answer.choices) == count
        assert answer.num_output_tokens == 8 * count

    return check


def same_as_the_text(answer: Answer, asker: Asker) -> None:
    assert answer.texts == asker.answer(prompt="dog").texts


def rated(answer: Answer, _: Asker) -> None:
    found = answer.choice.logprobs
    assert set(found) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(values) for values in found.values()} == {answer.num_output_tokens}


def echoed(answer: Answer, asker: Asker) -> None:
    assert answer.choice.text == PROMPT + asker.answer().choice.text


def best_is_one_of_them(answer: Answer, asker: Asker) -> None:
    assert answer.choice.text in asker.answer(n=4, **RANDOM).texts
    assert answer.num_output_tokens == 4 * 8


def names_ids(answer: Answer, _: Asker) -> None:
    names = [f"token_id:{token}" for token in answer.choice.token_ids]
    assert answer.choice.logprobs["tokens"] == names
    assert all(
        name in most_likely for name, most_likely in zip(names, answer.choice.logprobs["top_logprobs"], strict=True)
    )


COMPLETION_CASES = [
    *GENERATION,
    Case("prompt", {"prompt": ["dog", "fox", "dog"]}, number_of_choices(3)),
    Case("prompt", {"prompt": [70, 71, 72, 73]}, prompt_has(4)),
    Case("prompt", {"prompt": [[70], [71, 72]]}, number_of_choices(2)),
    Case("prompt_token_ids", {"prompt_token_ids": [70, 71, 72], "prompt": ""}, prompt_has(3)),
    Case("prompt_token_ids", {"prompt_token_ids": [[70], [71, 72]], "prompt": ""}, number_of_choices(2)),
    Case("logprobs", {"logprobs": 2}, rated),
    Case("return_tokens_as_token_ids", {"return_tokens_as_token_ids": True, "logprobs": 2, **IDS}, names_ids),
    Case("echo", {"echo": True}, echoed),
    Case("best_of", {"best_of": 4, "n": 1, **RANDOM}, best_is_one_of_them, streamed=False),
]

COMPLETION_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("suffix", {"suffix": "and so on"}),
    ("best_of", {"best_of": 1, "n": 2}),
    ("spaces_between_special_tokens", {"spaces_between_special_tokens": False}),
    ("logprobs", {"logprobs": -1}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 1_000_000}),
    ("truncation_side", {"truncation_side": "left"}),
    ("thinking_token_budget", {"thinking_token_budget": -1}),
    ("thinking_token_budget", {"thinking_token_budget": 5, "logits_processors": {}}),
    (
        "thinking_token_budget",
        {"thinking_token_budget": 5, "logits_processors_args": {"thinking_budget": 6}},
    ),
    ("cache_salt", {"cache_salt": ""}),
    ("guided_regex", {"guided_regex": "("}),
    ("never_heard_of", {"never_heard_of": 1}),
]
