"""Fields of a body that change what is sampled, over HTTP."""

from __future__ import annotations

from collections import Counter
from typing import Any

import openai
import pytest
from openai.types import Completion
from support.chat import MODEL, decode

PROMPT = "The capital of France is"
PARIS, END = 7042, 2
ALLOWED = [28, 216, 253, 281, 314]


def complete(client: openai.Client, **fields: Any) -> Completion:
    own = {name: fields.pop(name) for name in list(fields) if name not in ("frequency_penalty", "presence_penalty")}
    return client.completions.create(
        model=MODEL, prompt=PROMPT, **fields, extra_body={"temperature": 0, "max_tokens": 24, **own}
    )


def tokens_of(answer: Completion) -> list[str]:
    assert answer.choices[0].logprobs is not None
    return answer.choices[0].logprobs.tokens


@pytest.mark.parametrize("word", ["Paris", " Paris"])
def test_bad_words_are_not_said(light_client: openai.Client, word: str) -> None:
    pushed = {"logits_processors_args": {"logit_bias": {str(PARIS): 30.0}}}
    assert "Paris" in complete(light_client, **pushed).choices[0].text
    assert "Paris" not in complete(light_client, **pushed, bad_words=[word]).choices[0].text
    assert "Paris" not in complete(light_client, **pushed, bad_words_token_ids=[[PARIS]]).choices[0].text


def test_only_allowed_tokens_are_said(light_client: openai.Client) -> None:
    for sampling in ({"temperature": 0}, {"temperature": 2.0, "seed": 3}):
        answer = complete(light_client, allowed_token_ids=ALLOWED, logprobs=0, **sampling)
        assert set(tokens_of(answer)) <= {decode(token) for token in ALLOWED}


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_penalties_spread_what_is_said(client: openai.Client, penalty: str) -> None:
    fields = {"allowed_token_ids": ALLOWED, "logprobs": 0, "max_tokens": 10}
    most_often = Counter(tokens_of(complete(client, **fields))).most_common(1)[0][1]
    strength = 5.0 if penalty == "repetition_penalty" else 2.0
    penalized = Counter(tokens_of(complete(client, **fields, **{penalty: strength}))).most_common(1)[0][1]
    assert penalized < most_often


def test_an_answer_is_not_shorter_than_its_minimum(client: openai.Client) -> None:
    stop = {"stop_token_ids": list(range(300)), "ignore_eos": True}
    short, long = complete(client, **stop), complete(client, **stop, min_tokens=12)
    assert short.usage is not None
    assert long.usage is not None
    assert short.usage.completion_tokens < 12 <= long.usage.completion_tokens


def test_min_p_of_one_is_greedy(light_client: openai.Client) -> None:
    greedy = complete(light_client).choices[0].text
    assert complete(light_client, temperature=1.5, seed=1, min_p=1.0).choices[0].text == greedy
    assert complete(light_client, temperature=1.5, seed=1).choices[0].text != greedy


def test_a_request_that_rules_out_every_token_ends_with_an_error_that_says_so(light_client: openai.Client) -> None:
    """Nothing is left for the second token only, so that the request is admitted."""
    with pytest.raises(
        openai.BadRequestError, match="allowed_token_ids and bad_words left no token that can be sampled"
    ):
        complete(light_client, allowed_token_ids=[PARIS], bad_words_token_ids=[[PARIS, PARIS]])
    assert complete(light_client).choices[0].finish_reason == "length"


def test_a_request_that_leaves_no_first_token_is_refused(light_client: openai.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="allowed_token_ids: min_tokens = 3 rules out every one of them"):
        complete(light_client, allowed_token_ids=[END], stop_token_ids=[END], min_tokens=3)
