from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, VOCAB_SIZE, Churn, Row, crowds

from fastdeploy_lp.logits_processor.builtin.green_list import GreenList, score, token_hashes
from fastdeploy_lp.logits_processor.builtin.watermark import WatermarkLogitsProcessor

arguments = st.fixed_dictionaries(
    {"watermark_key": st.none() | st.integers(0, 2**63 - 1)},
    optional={
        "watermark_gamma": st.sampled_from([0.1, 0.25, 0.5, 0.9]),
        "watermark_delta": st.integers(0, 16).map(lambda quarters: quarters / 4),
        "watermark_context_width": st.integers(1, 4),
    },
)


def is_green(token: int, context: list[int], greens: GreenList) -> bool:
    """One token in whole numbers."""
    flip, factor = greens.mixers(context)
    value = token
    for multiplier, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        value ^= value >> 16
        value = value * multiplier % 2**32
        value ^= value >> shift
    return ((value ^ flip) * factor) % 2**32 < greens.gamma * 2**32


def reference(args: dict[str, Any], prompt: list[int]) -> Any:
    def row(logits: Row, output: list[int]) -> Row:
        if args["watermark_key"] is None:
            return logits
        width = args.get("watermark_context_width", 1)
        greens = GreenList(args["watermark_key"], args.get("watermark_gamma", 0.25), width)
        for token in range(VOCAB_SIZE):
            if is_green(token, [*prompt, *output][-width:], greens):
                logits[token] += np.float32(args.get("watermark_delta", 2.0))
        return logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(WatermarkLogitsProcessor, crowd, reference, seed=seed, dtype=dtype).run()


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5])
def test_green_lists_are_of_the_size_they_should_have_and_independent(gamma: float) -> None:
    greens, hashes = GreenList(7, gamma), token_hashes(1000)
    lists = np.array([greens.green(greens.mixers([context]), hashes) for context in range(500)])
    spread = np.sqrt(gamma * (1 - gamma))
    assert abs(lists.mean() - gamma) < 5 * spread / np.sqrt(lists.size)
    # As far from each other as coins are: lists behind different contexts, and tokens of one list.
    assert np.std(lists.mean(axis=0)) < 1.2 * spread / np.sqrt(500)
    assert np.std(lists.mean(axis=1)) < 1.2 * spread / np.sqrt(1000)
    other = GreenList(8, gamma)
    others = np.array([other.green(other.mixers([context]), hashes) for context in range(500)])
    assert abs(np.corrcoef(lists.ravel(), others.ravel())[0, 1]) < 0.01


def text(random: np.random.Generator, length: int, greens: GreenList | None) -> list[int]:
    """Tokens drawn from random logits, marked or not."""
    tokens, hashes = [3], token_hashes(2000)
    while len(tokens) <= length:
        logits = 2 * random.standard_normal(2000)
        if greens is not None:
            logits += 2.0 * greens.green(greens.mixers(tokens), hashes)
        tokens.append(int((logits + random.gumbel(size=2000)).argmax()))
    return tokens


@pytest.mark.parametrize("width", [1, 2])
def test_marked_texts_are_found_and_others_are_not(width: int) -> None:
    random = np.random.default_rng(0)
    unmarked = []
    for key in range(10):
        greens = GreenList(key, context_width=width)
        marked = text(random, 200, greens)
        assert score(marked, greens).z > 4
        assert score(marked, GreenList(key + 100, context_width=width)).z < 4
        unmarked.append(score(text(random, 200, None), greens).z)
    assert max(map(abs, unmarked)) < 4
    assert abs(np.mean(unmarked)) < 1.5


def test_a_passage_that_repeats_counts_once_and_no_tokens_score_nothing() -> None:
    greens = GreenList(5)
    assert score([1, 2, 3] * 50, greens).scored == 3
    assert (score([], greens).z, score([4], greens).z) == (0.0, 0.0)
    assert score([], greens).p_value == 0.5
