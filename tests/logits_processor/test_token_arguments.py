"""Arguments that are pieces of text: what the worker gets of them, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from support.chat import decode, encode

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import LogitsProcessor, RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.token_arguments import Marker, Phrase, PhraseForms, SentenceEnds
from fastdeploy_lp.request.sampling_params import SamplingParams

VOCAB_SIZE = 49152


class TextParams(BaseModel):
    words: Phrase | None = None
    answers: list[PhraseForms] | None = None
    marker: Marker | None = None
    ends: SentenceEnds | None = None
    opening: Phrase = Field(default="Hello there", validate_default=True)


class Texts(LogitsProcessor):
    """A processor of somebody else's whose arguments are phrases."""

    Params = TextParams

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


@pytest.fixture(scope="module")
def checks() -> RequestArgsValidator:
    return RequestArgsValidator(load_processors([spec_of(Texts)], {spec_of(Texts): Texts}), VOCAB_SIZE, encode)


def settled(checks: RequestArgsValidator, **args: Any) -> dict[str, Any]:
    """The arguments as the worker gets them, the same by name and flat."""
    flat = checks.validate(SamplingParams(logits_processors_args=args)).flat
    named = checks.validate(SamplingParams(logits_processors={"Texts": args})).named
    assert named == {"Texts": flat}
    return flat


def refusal(checks: RequestArgsValidator, **args: Any) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(logits_processors=[{"name": "Texts", "params": args}]))
    return caught.value


def test_a_text_becomes_its_tokens_and_token_ids_stay(checks: RequestArgsValidator) -> None:
    assert settled(checks, words="Yes, of course.")["words"] == encode("Yes, of course.")
    assert settled(checks, words=[5, 7])["words"] == [5, 7]


def test_forms_are_as_is_and_behind_a_space(checks: RequestArgsValidator) -> None:
    answers = settled(checks, answers=["Yes", [5], [[6, 7], [8]]])["answers"]
    assert answers == [[encode("Yes"), encode(" Yes")], [[5]], [[6, 7], [8]]]


def test_a_default_that_is_a_text_is_tokenized_and_sent(checks: RequestArgsValidator) -> None:
    assert settled(checks, words=[1]) == {"words": [1], "opening": encode("Hello there")}
    assert settled(checks, opening="Bye") == {"opening": encode("Bye")}


def test_what_was_settled_is_settled_to_the_same(checks: RequestArgsValidator) -> None:
    once = settled(checks, words="a b", answers=["c", "d"], marker="</think>", ends=True)
    assert settled(checks, **once) == once
    # As a plugin does it that builds its parameters again, in the worker, where no tokenizer is.
    assert TextParams.model_validate(once).model_dump() == once


@settings(max_examples=60)
@given(st.text(" \n.,!?:;)\"'abc", max_size=6), st.text(" \n.,!?:;)\"'abc", max_size=6))
def test_a_marker_is_found_between_other_characters(before: str, after: str) -> None:
    checks = RequestArgsValidator(load_processors([spec_of(Texts)], {spec_of(Texts): Texts}), VOCAB_SIZE, encode)
    before, after = before[:-1] + "b" + before[-1:], after[:1] + "a" + after[1:]
    forms = settled(checks, marker="</think>")["marker"]
    tokens = encode(f"{before}</think>{after}")
    assert any(form == tokens[at : at + len(form)] for form in forms for at in range(len(tokens)))
    assert all("</think>" in decode(*form) for form in forms)


def test_a_marker_that_is_too_long_is_tokenized_once() -> None:
    texts: list[str] = []

    def counted(text: str) -> list[int]:
        texts.append(text)
        return [*text.encode()]

    checks = RequestArgsValidator(load_processors([spec_of(Texts)], {spec_of(Texts): Texts}), VOCAB_SIZE, counted)
    long = "a" * 5000
    assert "5000 tokens are too many" in refusal(checks, marker=long).reason
    assert texts.count(long) == sum(long in text for text in texts) == 1


def test_sentence_ends_are_single_tokens(checks: RequestArgsValidator) -> None:
    ends = settled(checks, ends=True)["ends"]
    assert {*encode("."), *encode("!"), *encode("\n")} <= set(ends)
    assert settled(checks, ends=False)["ends"] == []
    assert settled(checks, ends=[";", 5])["ends"] == [*encode(";"), 5]


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({"words": ""}, "words", "empty text"),
        ({"words": []}, "words", "without tokens"),
        ({"words": 5}, "words", "must be a text or a list of token ids"),
        ({"words": [1, VOCAB_SIZE]}, "words", "allowed are 0 to 49151"),
        ({"words": [1, -1]}, "words", "no token id"),
        ({"words": [True]}, "words", "no token id"),
        ({"words": ["a"]}, "words", "no token id"),
        ({"words": "a" * 50000}, "words", "too many"),
        ({"answers": ["a", ""]}, "answers.1", "empty text"),
        ({"answers": ["a", [VOCAB_SIZE]]}, "answers.1", "no token id"),
        ({"answers": "a"}, "answers", "list"),
        ({"marker": []}, "marker", "without tokens"),
        ({"marker": [[]]}, "marker", "without tokens"),
        ({"ends": 3}, "ends", "list"),
        ({"ends": [VOCAB_SIZE]}, "ends", "no token id"),
    ],
    ids=str,
)
def test_a_mistake_is_named_by_its_path(
    checks: RequestArgsValidator, args: dict[str, Any], path: str, reason: str
) -> None:
    error = refusal(checks, **args)
    assert error.path == f"logits_processors.0.params.{path}"
    assert reason in error.reason


def test_without_a_tokenizer_only_token_ids_are_taken() -> None:
    checks = RequestArgsValidator(load_processors([spec_of(Texts)], {spec_of(Texts): Texts}), VOCAB_SIZE)
    assert "give a list of token ids" in refusal(checks, words="a").reason
    assert settled(checks, words=[1], opening=[2]) == {"words": [1], "opening": [2]}
