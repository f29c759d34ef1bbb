"""Every builtin over HTTP: it does to a text, or to the distributions behind it, what it claims."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from support.chat import post
from support.server import ServerProcess

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
EOS = 2
NEVER = -9999.0


@dataclass(frozen=True)
class Told:
    """Tokens, and the probabilities of the 20 most likely ones at each position, in descending order."""

    tokens: list[int]
    likely: list[np.ndarray]
    finish_reason: str

    @property
    def kept(self) -> list[int]:
        """How many of them can be drawn at each position."""
        return [int((each > 0).sum()) for each in self.likely]


def ask(server: ServerProcess, args: dict[str, Any] | None = None, **fields: Any) -> Told:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 24, "return_token_ids": True, **fields}
    body |= {"logprobs": True, "top_logprobs": 20, "logits_processors_args": args or {}}
    answer = post(server, body)
    assert answer.status_code == httpx.codes.OK, answer.text
    choice = answer.json()["choices"][0]
    likely = [
        np.array([0.0 if top["logprob"] == NEVER else math.exp(top["logprob"]) for top in entry["top_logprobs"]])
        for entry in choice["logprobs"]["content"]
    ]
    return Told(choice["token_ids"], likely, choice["finish_reason"])


@pytest.fixture(scope="module")
def plain(server: ServerProcess) -> Told:
    return ask(server)


@pytest.fixture(scope="module")
def long(server: ServerProcess) -> Told:
    return ask(server, max_tokens=48)


@pytest.fixture(scope="module")
def random(server: ServerProcess) -> Told:
    return ask(server, temperature=1.0, seed=1)


def repeated_runs(tokens: list[int], size: int) -> int:
    counted = Counter(tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))
    return sum(count - 1 for count in counted.values())


def test_sequence_bias_turns_a_text_away_from_a_sequence_and_towards_another(
    server: ServerProcess, plain: Told
) -> None:
    first, second, third = plain.tokens[:3]
    away = ask(server, {"sequence_bias": [[[first, second, third], -100.0]]}).tokens
    assert away[:2] == [first, second]
    assert away[2] != third
    towards = ask(server, {"sequence_bias": [[[first, 42], 100.0], [[42, 43], 100.0]]}).tokens
    assert towards[:3] == [first, 42, 43]


def test_allowed_tokens_are_all_that_is_written(server: ServerProcess, plain: Told) -> None:
    allowed = {*plain.tokens[3:9], EOS}
    told = ask(server, {"allowed_token_ids": sorted(allowed)}, temperature=1.0, seed=3, max_tokens=16)
    assert set(told.tokens) <= allowed
    assert max(told.kept) <= len(allowed)


def test_bad_words_are_not_written(server: ServerProcess, plain: Told) -> None:
    words = [[plain.tokens[0]], plain.tokens[4:6]]
    told = ask(server, {"bad_words_token_ids": words})
    assert words[0][0] not in told.tokens
    assert words[1] not in [told.tokens[at : at + 2] for at in range(len(told.tokens))]


def test_no_answer_is_shorter_than_min_tokens(server: ServerProcess) -> None:
    short = {"messages": [{"role": "user", "content": "Answer with one word: what is 1+1?"}], "max_tokens": 60}
    told = ask(server, **short)
    assert told.finish_reason == "stop"
    wanted = len(told.tokens) + 5
    longer = ask(server, {"min_tokens": wanted}, **short)
    assert len(longer.tokens) >= wanted
    assert EOS not in longer.tokens[:wanted]


@pytest.mark.parametrize("args", [{"repetition_penalty": 1.4}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}])
def test_penalties_make_tokens_appear_less_often(server: ServerProcess, long: Told, args: dict[str, float]) -> None:
    penalized = ask(server, args, max_tokens=48).tokens
    assert len(set(penalized)) / len(penalized) > len(set(long.tokens)) / len(long.tokens)
    # The sampler's field of this name gives the same text.
    assert ask(server, max_tokens=48, **args).tokens == penalized


def test_repetitions_are_ruled_out_by_n_grams_and_broken_off_by_dry(server: ServerProcess) -> None:
    echo = {"messages": [{"role": "user", "content": "Repeat: one two three, one two three, one two three"}]}
    plain = ask(server, **echo).tokens
    assert repeated_runs(plain, 3) > 0
    assert repeated_runs(ask(server, {"no_repeat_ngram_size": 3}, **echo).tokens, 3) == 0
    dry = ask(server, {"dry_multiplier": 5.0, "dry_allowed_length": 2}, **echo).tokens
    assert repeated_runs(dry, 4) < repeated_runs(plain, 4)


def test_min_p_keeps_what_is_likely_enough(server: ServerProcess, random: Told) -> None:
    told = ask(server, {"min_p": 0.2}, temperature=1.0, seed=1)
    assert max(told.kept) < 20
    first = random.likely[0]
    assert told.kept[0] == int((first >= 0.2 * first[0]).sum())


def test_top_n_sigma_keeps_the_top(server: ServerProcess) -> None:
    kept = [sum(ask(server, {"top_n_sigma": n}, temperature=1.0, seed=1).kept[:1]) for n in (0.01, 1.0, 3.0)]
    assert 1 == kept[0] <= kept[1] <= kept[2]


def test_epsilon_and_eta_leave_out_what_is_unlikely(server: ServerProcess, random: Told) -> None:
    first = random.likely[0]
    epsilon = ask(server, {"epsilon_cutoff": 0.02}, temperature=1.0, seed=1)
    assert epsilon.kept[0] == max(1, int((first >= 0.02).sum()))
    # The entropy only ever lowers the bound.
    eta = ask(server, {"eta_cutoff": 0.02}, temperature=1.0, seed=1)
    assert epsilon.kept[0] <= eta.kept[0]
    assert any(kept < 20 for kept in eta.kept)


def test_typical_p_keeps_enough_and_no_more(server: ServerProcess, random: Told) -> None:
    told = ask(server, {"typical_p": 0.3}, temperature=1.0, seed=1)
    assert min(told.kept) >= 1
    assert told.kept[0] < random.kept[0]


def test_xtc_leaves_out_the_obvious_in_some_steps_and_keeps_the_seeds_text(server: ServerProcess) -> None:
    args = {"xtc_probability": 0.5, "xtc_threshold": 0.05}
    fields: dict[str, Any] = {"temperature": 1.0}
    first, again, other = (ask(server, args, seed=seed, **fields).tokens for seed in (5, 5, 6))
    assert first == again != other
    never, always = (ask(server, args | {"xtc_probability": p}, seed=5, **fields) for p in (0.0, 1.0))
    assert never.tokens == ask(server, seed=5, **fields).tokens
    # With the obvious gone no more than one token as likely as the threshold was before is left.
    assert np.mean([each[0] for each in always.likely]) < np.mean([each[0] for each in never.likely])
    assert always.tokens != first != never.tokens


def test_length_decay_ends_an_answer(server: ServerProcess, long: Told) -> None:
    told = ask(server, {"exponential_decay_length_penalty": [8, 1.6]}, max_tokens=48)
    assert told.finish_reason == "stop"
    assert 8 < len(told.tokens) < len(long.tokens)


def test_requests_with_different_processors_share_a_batch(server: ServerProcess, plain: Told) -> None:
    asked: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.4},
        {"allowed_token_ids": plain.tokens[:9]},
        {"no_repeat_ngram_size": 2, "frequency_penalty": 1.0},
        {"dry_multiplier": 2.0, "min_tokens": 20},
        {"bad_words_token_ids": [[plain.tokens[0]]]},
    ]
    alone = [ask(server, args).tokens for args in asked]
    with ThreadPoolExecutor(len(asked)) as together:
        assert list(together.map(lambda args: ask(server, args).tokens, asked)) == alone


def test_what_is_wrong_is_told_with_its_place(server: ServerProcess) -> None:
    for name, args, place in (("min_p", {"min_p": 2}, ""), ("allowed_token_ids", {"allowed_token_ids": [512]}, ".0")):
        answer = post(server, {"messages": QUESTION, "logits_processors_args": args})
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert answer.json()["error"]["param"] == f"logits_processors_args.{name}{place}"
