"""All builtins in one chain on a tiny model: a request's tokens depend neither on its neighbours nor on preemption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sequences import request, run_to_end, tiny_engine

from fastdeploy_lp.logits_processor import BUILTIN
from fastdeploy_lp.messages import AddRequest

# So few that a text of a random model repeats itself.
FEW = {"allowed_token_ids": list(range(3, 14))}
ARGUMENTS: list[dict[str, Any]] = [
    {"sequence_bias": [[[4], 3.0], [[4, 9], 8.0]]},
    {"allowed_token_ids": list(range(3, 60))},
    {"bad_words_token_ids": [[4], [5, 6]], "min_tokens": 12},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"no_repeat_ngram_size": 2} | FEW,
    {"dry_multiplier": 9.0, "dry_allowed_length": 1} | FEW,
    {"exponential_decay_length_penalty": [4, 1.3]},
    {"min_p": 0.3, "xtc_probability": 0.5, "xtc_threshold": 0.02},
    {"top_n_sigma": 2.0},
    {"typical_p": 0.6},
    {"epsilon_cutoff": 0.004, "eta_cutoff": 0.05},
    {"gumbel_key": 5, "gumbel_context_width": 2},
    {"synthid_key": 5, "synthid_context_width": 2} | FEW,
    {"mirostat_tau": 4.0, "mirostat_eta": 0.5},
    {},
]


def asked(arguments: list[dict[str, Any]] = ARGUMENTS) -> list[AddRequest]:
    random = np.random.default_rng(0)
    return [
        request(
            str(number),
            random.integers(3, 40, 6 + number).tolist(),
            temperature=1.0,
            seed=number,
            max_tokens=24,
            logits_processors_args=args,
        )
        for number, args in enumerate(arguments)
    ]


def tokens_of(requests: list[AddRequest], **config: Any) -> dict[str, list[int]]:
    engine = tiny_engine(list(BUILTIN), eos_token_ids=(2,), **config)
    found = {name: ran.token_ids for name, ran in run_to_end(engine, requests).items()}
    assert (engine.scheduler.num_preemptions > 0) == ("num_blocks" in config)
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in asked():
        found |= tokens_of([each])
    return found


@pytest.mark.parametrize(
    "config",
    [
        {"max_num_seqs": 12},
        {"max_num_seqs": 5, "max_num_batched_tokens": 7},
        # Two full contexts' worth of blocks for twelve requests: most of them are preempted on their way.
        {"max_num_seqs": 12, "num_blocks": 33},
    ],
    ids=["in a crowd", "in small chunks", "with preemption"],
)
def test_the_same_tokens_alone_and(config: dict[str, Any], alone: dict[str, list[int]]) -> None:
    assert tokens_of(asked(), **config) == alone


def test_every_processor_made_a_difference(alone: dict[str, list[int]]) -> None:
    without = [FEW if args.items() >= FEW.items() else {} for args in ARGUMENTS]
    plain = tokens_of(asked(without), max_num_seqs=12)
    assert [name for name in plain if plain[name] == alone[name]] == [str(len(ARGUMENTS) - 1)]
