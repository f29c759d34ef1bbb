"""What builtin processors accept of requests, and what they refuse, naming the place."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.server import REPOSITORY

from fastdeploy_lp import SamplingParams
from fastdeploy_lp.logits_processor import BUILTIN, RequestArgsError, RequestArgsValidator, load_processors

VOCAB_SIZE = 100
NAN = math.nan

ACCEPTED: list[dict[str, Any]] = [
    {"sequence_bias": [[[1, 2], 3.5], [[7], -math.inf]]},
    {"allowed_token_ids": [99, 0]},
    {"bad_words_token_ids": [[1], [2, 3]]},
    {"min_tokens": 3},
    {"min_p": 0.1},
    {"min_p": None},
    {"repetition_penalty": 1.2},
    {"presence_penalty": -2},
    {"frequency_penalty": 2.0},
    {"no_repeat_ngram_size": 3},
    {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 1, "dry_sequence_breakers": [4]},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    {"typical_p": 1},
    {"top_n_sigma": 1.0},
    {"eta_cutoff": 3e-4},
    {"epsilon_cutoff": 3e-4},
    {"exponential_decay_length_penalty": [10, 1.1]},
    {"gumbel_key": 0, "gumbel_context_width": 8},
    {"synthid_key": 2**63 - 1, "synthid_layers": 32},
    {"mirostat_tau": 3, "mirostat_eta": 0.2},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sequence_bias": [[[1, 100], 3.5]]}, "sequence_bias.0.0.1"),
    ({"sequence_bias": [[[], 3.5]]}, "sequence_bias.0.0"),
    ({"sequence_bias": [[[1], NAN]]}, "sequence_bias.0.1"),
    ({"sequence_bias": {"1": 2.0}}, "sequence_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [1, -1]}, "allowed_token_ids.1"),
    ({"allowed_token_ids": ["1"]}, "allowed_token_ids.0"),
    ({"bad_words_token_ids": [[1], []]}, "bad_words_token_ids.1"),
    ({"bad_words_token_ids": [[True]]}, "bad_words_token_ids.0.0"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 3.0}, "min_tokens"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": "0.1"}, "min_p"),
    ({"min_p": NAN}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": True}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ({"dry_base": 1.75}, "dry_multiplier"),
    ({"dry_multiplier": 1, "dry_base": 0.5}, "dry_base"),
    ({"dry_multiplier": 1, "dry_sequence_breakers": [100]}, "dry_sequence_breakers.0"),
    ({"dry_multiplier": 1, "dry_penalty_last_n": -2}, "dry_penalty_last_n"),
    ({"xtc_threshold": 0.1}, "xtc_probability"),
    ({"xtc_probability": 1.5}, "xtc_probability"),
    ({"typical_p": 0}, "typical_p"),
    ({"top_n_sigma": 0}, "top_n_sigma"),
    ({"eta_cutoff": 1}, "eta_cutoff"),
    ({"epsilon_cutoff": -1e-4}, "epsilon_cutoff"),
    ({"exponential_decay_length_penalty": [10]}, "exponential_decay_length_penalty.1"),
    ({"exponential_decay_length_penalty": [1.5, 1.1]}, "exponential_decay_length_penalty.0"),
    ({"exponential_decay_length_penalty": [1, math.inf]}, "exponential_decay_length_penalty.1"),
    ({"gumbel_key": -1}, "gumbel_key"),
    ({"gumbel_key": 2**63}, "gumbel_key"),
    ({"gumbel_context_width": 2}, "gumbel_key"),
    ({"synthid_key": 1, "synthid_layers": 33}, "synthid_layers"),
    ({"mirostat_tau": -0.1}, "mirostat_tau"),
    ({"mirostat_tau": 3, "mirostat_eta": 0}, "mirostat_eta"),
]


@pytest.fixture(scope="module")
def validator() -> RequestArgsValidator:
    return RequestArgsValidator(load_processors(list(BUILTIN)), VOCAB_SIZE)


@pytest.mark.parametrize("args", ACCEPTED, ids=lambda args: next(iter(args)))
def test_arguments_reach_the_worker_as_they_were_meant(args: dict[str, Any], validator: RequestArgsValidator) -> None:
    def plain(value: Any) -> Any:
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    settled = validator.validate(SamplingParams(logits_processors_args=args)).flat
    assert {name: plain(value) for name, value in settled.items()} == args


@pytest.mark.parametrize(("args", "place"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_meant_is_refused_where_it_stands(
    args: dict[str, Any], place: str, validator: RequestArgsValidator
) -> None:
    with pytest.raises(RequestArgsError) as refused:
        validator.validate(SamplingParams(logits_processors_args=args))
    assert refused.value.path == f"logits_processors_args.{place}"


def test_every_builtin_is_documented_with_its_arguments() -> None:
    page = (REPOSITORY / "docs" / "builtin-processors.md").read_text()
    for processor in load_processors(list(BUILTIN)):
        section = page.partition(f"### {processor.name}\n")[2].partition("\n### ")[0]
        assert all(f"| `{name}` |" in section for name in processor.argument_names), processor.name
        assert processor.description in section
