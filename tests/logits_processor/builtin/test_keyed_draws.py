"""Draws by a key, and Mirostat: against their definitions, and what detectors find."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import paddle
import pytest
from support.seen import run
from support.sequences import request, tiny_engine

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.builtin.keyed_draws import PLAIN, _Contexts
from fastdeploy_lp.logits_processor.builtin.keyed_hash import context_mixers, token_words
from fastdeploy_lp.logits_processor.builtin.keyed_scores import gumbel_score, synthid_score
from fastdeploy_lp.model_executor.ops.choices import Choices, KeyedRows, PaddleChoices, choices
from fastdeploy_lp.platforms import on_host

REFERENCE = PaddleChoices()


def keyed(rows: int, layers: int, seed: int = 0) -> KeyedRows:
    mixers = np.array([context_mixers(seed, [row]) for row in range(rows)], np.uint32)
    return KeyedRows(mixers[:, 0].copy(), mixers[:, 1].copy(), np.full(rows, layers, np.int64))


def uniforms(rows: int, seed: int = 0) -> np.ndarray:
    return (1 - np.random.default_rng(seed).random(rows)).astype(np.float32)


def some_rows(seed: int, size: int) -> np.ndarray:
    """Rows as models and filters leave them."""
    random = np.random.default_rng(seed)
    rows = random.normal(0, 3, (12, size)).astype(np.float32)
    rows[1:4, random.permutation(size)[: size - size // 8]] = -np.inf
    rows[4] = 0.0
    rows[5] = -np.inf
    rows[5, size // 2] = -3.0
    rows[6, size - 1] = 40.0
    rows[7] *= 6
    return rows


@pytest.mark.parametrize("size", [5, 16, 500, 4099])
def test_compiled_choices_are_those_of_the_reference(size: int) -> None:
    compiled = choices()
    assert type(compiled) is not PaddleChoices
    for seed in range(4):
        rows = some_rows(seed, size)
        rows[8], rows[9, 1], rows[10, 2] = -np.inf, np.nan, np.inf
        given, uniform = paddle.to_tensor(rows), uniforms(len(rows), seed)
        for layers in (0, 1, 30):
            marks = keyed(len(rows), layers, seed)
            marks.factors[::5] = 0
            own, expected = (each.keyed(given, marks, uniform).tolist() for each in (compiled, REFERENCE))
            assert own == expected
            assert own[8:11] == [-1, -1, -1]
        for bits in (0.0, 2.5, 9.0, np.inf):
            bound = np.full(len(rows), bits)
            own, expected = (each.below_surprise(given, bound, uniform) for each in (compiled, REFERENCE))
            assert own[0].tolist() == expected[0].tolist()
            np.testing.assert_allclose(on_host(own[1]), on_host(expected[1]), rtol=1e-12, atol=1e-12)
        assert (paddle.to_tensor(rows).numpy() == given.numpy()).all() or np.isnan(rows).any()


@pytest.mark.parametrize("made", [choices(), REFERENCE], ids=["compiled", "reference"])
def test_the_exponential_minimum_is_the_greatest_perturbed_logit(made: Choices) -> None:
    rows = some_rows(1, 300)[:8]
    marks = keyed(8, 0)
    words = token_words(np.arange(300), marks.flips[:, None], marks.factors[:, None])
    expected = (rows - np.log(-np.log((words + 0.5) / 2.0**32))).argmax(axis=1)
    assert made.keyed(paddle.to_tensor(rows), marks, uniforms(8)).tolist() == expected.tolist()


def tournament(shares: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The winners' distribution after rounds between two independent winners of the round before; bits [rounds, n]."""
    for own in bits:
        winners = np.zeros_like(shares)
        for first, second in product(range(len(shares)), repeat=2):
            both = shares[first] * shares[second]
            if own[first] == own[second]:
                winners[first] += both / 2
                winners[second] += both / 2
            else:
                winners[first if own[first] else second] += both
        shares = winners
    return shares


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_a_tournament_is_what_two_way_rounds_make_of_the_distribution(layers: int) -> None:
    logits = np.array([0.0, -1.0, -0.3, -2.0, -6.9, -8.0, -9.0], np.float32)
    words = token_words(np.arange(7), *(np.uint32([each]) for each in context_mixers(3, [5, 6])))
    bits = (words >> np.arange(layers, dtype=np.uint32)[:, None]) & 1
    shares = np.exp(logits.astype(np.float64))
    shares /= shares.sum()
    # The last two are too unlikely to take part.
    inside = shares[:5].sum()
    expected = np.append(tournament(shares[:5] / inside, bits[:, :5]) * inside, shares[5:])
    count = 40_000
    flip, factor = context_mixers(3, [5, 6])
    marks = KeyedRows(*(np.full(count, each, np.uint32) for each in (flip, factor)), np.full(count, layers))
    grid = ((np.arange(count) + 0.5) / count).astype(np.float32)
    rows = paddle.to_tensor(np.tile(logits, (count, 1)))
    found = np.bincount(on_host(choices().keyed(rows, marks, grid)), minlength=7) / count
    np.testing.assert_allclose(found, expected, atol=3 / count)


@pytest.mark.parametrize("layers", [0, 30])
def test_over_keys_the_tokens_are_distributed_as_without_one(layers: int) -> None:
    count = 40_000
    logits = np.random.default_rng(5).normal(0, 2, 24).astype(np.float32)
    shares = np.exp(logits.astype(np.float64))
    shares /= shares.sum()
    tokens = choices().keyed(paddle.to_tensor(np.tile(logits, (count, 1))), keyed(count, layers), uniforms(count))
    found = np.bincount(on_host(tokens), minlength=24) / count
    assert (np.abs(found - shares) < 5 * np.sqrt(shares * (1 - shares) / count)).all()


def test_the_words_of_a_context_are_as_good_as_random() -> None:
    mixers = np.array([context_mixers(9, [context]) for context in range(400)], np.uint32)
    words = token_words(np.arange(1000), mixers[:, :1], mixers[:, 1:])
    bits = words[..., None] >> np.arange(32, dtype=np.uint32) & 1
    assert np.abs(bits.mean(axis=(0, 1)) - 0.5).max() < 5 * 0.5 / math.sqrt(words.size)
    flat = bits.reshape(-1, 32)[::7].astype(np.float64) - 0.5
    pairs = flat.T @ flat / len(flat) * 4 - np.eye(32)
    assert np.abs(pairs).max() < 5 / math.sqrt(len(flat))
    neighbours = (words[:, :-1] / 2.0**32 - 0.5) * (words[:, 1:] / 2.0**32 - 0.5) * 12
    assert abs(neighbours.mean()) < 5 / math.sqrt(neighbours.size)


def test_a_context_marks_one_token_and_the_first_ones_are_not_marked() -> None:
    output: list[int] = []
    contexts = _Contexts(7, 2, 0, output)
    seen = []
    for token in [1, 2, 3, 1, 2, 9, 1, 2]:
        seen.append(contexts.mixers())
        assert contexts.mixers() == seen[-1]
        output.append(token)
    seen.append(contexts.mixers())
    assert [each == PLAIN for each in seen] == [True, True, False, False, False, True, False, False, True]
    assert seen[2] == context_mixers(7, (1, 2))
    # As after a preemption.
    assert _Contexts(7, 2, 0, output).mixers() == PLAIN


SCORES = {0: gumbel_score, 30: synthid_score}


def text(layers: int, key: int, seed: int, length: int = 200) -> list[int]:
    """Tokens drawn from random logits by this key; by none if it is negative."""
    random, output = np.random.default_rng(seed), []
    contexts = _Contexts(max(key, 0), 4, layers, output)
    for _ in range(length):
        logits = paddle.to_tensor(2 * random.standard_normal((1, 500)).astype(np.float32))
        flip, factor = contexts.mixers() if key >= 0 else PLAIN
        marks = KeyedRows(np.uint32([flip]), np.uint32([factor]), np.int64([layers]))
        output += choices().keyed(logits, marks, (1 - random.random(1)).astype(np.float32)).tolist()
    return output


@pytest.mark.parametrize("layers", [0, 30])
def test_marked_texts_are_found_and_others_are_not(layers: int) -> None:
    score = SCORES[layers]
    marked = [score(text(layers, key, key), key) for key in range(8)]
    others = [score(text(layers, key, key), key + 100) for key in range(8)] + [
        score(text(layers, -1, seed), 5) for seed in range(8)
    ]
    assert min(each.z for each in marked) > 6 > 4 > max(abs(each.z) for each in others)
    assert max(each.p_value for each in marked) < 1e-6
    assert abs(np.mean([each.z for each in others])) < 1
    assert {each.scored for each in marked} == {196}
    nothing = score([1, 2], 5)
    assert (nothing.scored, nothing.z, nothing.p_value) == (0, 0.0, 1.0)


@pytest.mark.parametrize("score", SCORES.values())
def test_p_values_are_those_of_text_without_the_mark(score: Any) -> None:
    random = np.random.default_rng(1)
    values = [score(random.integers(0, 5000, 60).tolist(), 3).p_value for _ in range(400)]
    for level in (0.05, 0.3, 0.7):
        share = np.mean(np.array(values) < level)
        assert abs(share - level) < 5 * math.sqrt(level * (1 - level) / 400)


def mirostat(name: str, tau: float, eta: float = 0.1, **params: Any) -> Any:
    selection = Selection(named={"MirostatLogitsProcessor": {"mirostat_tau": tau, "mirostat_eta": eta}})
    return request(name, [5, 9, 2], temperature=1.0, seed=3, selection=selection, **params)


def test_mirostat_follows_its_definition() -> None:
    engine = tiny_engine(["MirostatLogitsProcessor"], max_model_len=256)
    bounds: list[float] = []
    (processor,) = [entry.processor for entry in engine.runner.chain._main.entries]
    seen: list[tuple[float, float]] = []
    inner = processor._choices.below_surprise

    def watched(logits: Any, bits: Any, uniform: Any) -> Any:
        tokens, surprises = inner(logits, bits, uniform)
        wide = logits.numpy()[0].astype(np.float64)
        shares = np.exp(wide - wide.max())
        shares /= shares.sum()
        token = int(tokens[0])
        assert -np.log2(shares[token]) == pytest.approx(float(surprises[0]), abs=1e-6)
        assert float(surprises[0]) <= bits[0] + 1e-9 or token == shares.argmax()
        seen.append((float(bits[0]), float(surprises[0])))
        return tokens, surprises

    processor._choices.below_surprise = watched
    (ran,) = run(engine, [mirostat("r", 3.0, max_tokens=150)]).values()
    assert len(ran.tokens) == len(seen) == 150
    bound = 6.0
    for bits, surprise in seen:
        assert bits == pytest.approx(bound)
        bounds.append(bound)
        bound -= 0.1 * (surprise - 3.0)
    assert len({round(each, 6) for each in bounds}) > 20
