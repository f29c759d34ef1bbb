from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.config import ModelConfig
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import InputProcessor, Prompt
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.logits_processor import RequestArgsValidator, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, ToWorker, decoder, encode
from fastdeploy_lp.request.limits import MAX_TOKENIZED_CHARACTERS
from fastdeploy_lp.request.prompt_options import PromptOptions
from fastdeploy_lp.request.sampling_params import MAX_N, MAX_SEED, SamplingParams

MAX_MODEL_LEN = 50
VOCAB_SIZE = 49152


@pytest.fixture(scope="module")
def inputs(tokenizer: Tokenizer) -> InputProcessor:
    """With a processor that checks its arguments and one that takes any."""
    return input_processor(tokenizer, "LogitBiasLogitsProcessor", "support.processors:YourLogitsProcessor")


@pytest.fixture(scope="module")
def strict(tokenizer: Tokenizer) -> InputProcessor:
    """With LogitBias alone."""
    return input_processor(tokenizer, "LogitBiasLogitsProcessor")


def input_processor(tokenizer: Tokenizer, *specs: str, max_model_len: int = MAX_MODEL_LEN) -> InputProcessor:
    config = ModelConfig("m", "d", "m", VOCAB_SIZE, max_model_len, (2,))
    return InputProcessor(config, tokenizer, RequestArgsValidator(load_processors(specs), VOCAB_SIZE))


def prompt_of(length: int) -> Prompt:
    return Prompt([1] * length, None)


# Prompts


def test_a_text_prompt_is_tokenized(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    prompt = inputs.prompt("Hello there")
    assert prompt == Prompt(tokenizer.encode("Hello there"), "Hello there")


def test_a_token_prompt_is_taken_as_it_is(inputs: InputProcessor) -> None:
    assert inputs.prompt((5, 0, VOCAB_SIZE - 1)) == Prompt([5, 0, VOCAB_SIZE - 1], None)


def test_a_chat_becomes_the_references_prompt(tokenizer: Tokenizer, golden_cases: list[dict[str, Any]]) -> None:
    roomy = input_processor(tokenizer, max_model_len=1000)
    for case in golden_cases:
        assert roomy.chat_prompt(case["messages"]) == Prompt(case["prompt_ids"], case["rendered"], is_chat=True)


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, True, 1.0, "5", None])
def test_something_that_is_no_token_id_is_named(inputs: InputProcessor, token: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.prompt([1, 2, token])
    assert caught.value.param == "prompt.2"
    assert f"0 to {VOCAB_SIZE - 1}" in str(caught.value)


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(inputs: InputProcessor, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompt: the prompt is empty"):
        inputs.prompt(prompt)


def test_a_chat_without_messages_is_refused(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.chat_prompt([])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, MAX_MODEL_LEN + 1, 10 * MAX_MODEL_LEN])
def test_a_prompt_that_leaves_no_room_for_output_is_refused(inputs: InputProcessor, length: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.prompt([1] * length)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert str(length) in str(caught.value)
    assert str(MAX_MODEL_LEN) in str(caught.value)


def test_a_chat_that_leaves_no_room_for_output_names_the_messages(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.chat_prompt([{"role": "user", "content": "word " * MAX_MODEL_LEN}])
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_the_longest_prompt_leaves_room_for_one_token(inputs: InputProcessor) -> None:
    prompt = inputs.prompt([1] * (MAX_MODEL_LEN - 1))
    assert inputs.settle(SamplingParams(), prompt).params.max_tokens == 1


COUNTED = list(range(1, 2 * MAX_MODEL_LEN))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (PromptOptions(truncate_prompt_tokens=3), COUNTED[-3:]),
        (PromptOptions(truncate_prompt_tokens=3, truncation_side="right"), COUNTED[:3]),
        (PromptOptions(truncate_prompt_tokens=-1), COUNTED[-MAX_MODEL_LEN + 1 :]),
        (PromptOptions(truncate_prompt_tokens=-1, max_tokens=20), COUNTED[-MAX_MODEL_LEN + 20 :]),
        (PromptOptions(truncate_prompt_tokens=-1, max_tokens=MAX_MODEL_LEN), COUNTED[-1:]),
    ],
)
def test_a_prompt_is_cut_to_the_number_of_tokens_that_the_request_names(
    inputs: InputProcessor, options: PromptOptions, kept: list[int]
) -> None:
    assert inputs.prompt(COUNTED, options=options) == Prompt(kept, None)


def test_a_cut_text_has_the_tokens_of_the_whole_one(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    text = "one two three four " * MAX_MODEL_LEN
    cut = PromptOptions(truncate_prompt_tokens=7)
    assert inputs.prompt(text, options=cut) == Prompt(tokenizer.encode(text)[-7:], None)
    assert inputs.prompt("one two", options=cut) == inputs.prompt("one two")
    messages = [{"role": "user", "content": text}]
    chat = inputs.chat_prompt(messages, None, cut)
    assert chat == Prompt(tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)[-7:], None, True)


def test_a_pooled_prompt_keeps_its_first_tokens_and_may_fill_the_context(inputs: InputProcessor) -> None:
    cut = PromptOptions(truncate_prompt_tokens=3)
    assert inputs.pooling_prompt(COUNTED, options=cut).token_ids == COUNTED[:3]
    whole = PromptOptions(truncate_prompt_tokens=-1)
    assert inputs.pooling_prompt(COUNTED, options=whole).token_ids == COUNTED[:MAX_MODEL_LEN]


def test_tokens_that_are_cut_off_are_checked_too(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt\.1: -5 is no token id"):
        inputs.prompt([1, -5, 2, 3], options=PromptOptions(truncate_prompt_tokens=1))


def test_a_text_to_cut_is_bounded_as_a_whole(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError, match="characters are too many"):
        inputs.prompt("a " * MAX_TOKENIZED_CHARACTERS, options=PromptOptions(truncate_prompt_tokens=1))


def test_more_tokens_than_the_context_holds_are_refused(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError, match=f"truncate_prompt_tokens: 51 is too many.* {MAX_MODEL_LEN} tokens"):
        inputs.prompt("one", options=PromptOptions(truncate_prompt_tokens=MAX_MODEL_LEN + 1))


@pytest.mark.parametrize("text", ["\ud800", "half \udfff of a pair"])
def test_text_that_is_no_unicode_is_refused(inputs: InputProcessor, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.prompt(text)
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError) as caught:
        inputs.chat_prompt([{"role": "user", "content": text}])
    assert (caught.value.param or "").startswith("messages")


def test_text_with_tokens_that_the_model_does_not_know_is_refused(tokenizer: Tokenizer) -> None:
    """Nothing behind the worker's embedding holds them against its size."""
    known = min(tokenizer.encode("zebra"))
    config = ModelConfig("m", "d", "m", known, MAX_MODEL_LEN, (2,))
    small = InputProcessor(config, tokenizer, RequestArgsValidator([], known))
    for param, refused in (
        ("prompt", lambda: small.prompt("zebra")),
        ("messages", lambda: small.chat_prompt([{"role": "user", "content": "zebra"}])),
        ("bad_words.0", lambda: small.settle(SamplingParams(bad_words=["zebra"]), prompt_of(1))),
    ):
        with pytest.raises(InvalidRequestError, match=f"is no token id; allowed are 0 to {known - 1}") as caught:
            refused()
        assert caught.value.param == param


# Parameters


def test_settling_leaves_nothing_open(inputs: InputProcessor) -> None:
    settled = inputs.settle(SamplingParams(), prompt_of(10))
    assert settled.params.max_tokens == MAX_MODEL_LEN - 10
    assert settled.selection == Selection()
    assert settled.params.seed is not None
    assert 0 <= settled.params.seed <= MAX_SEED


def test_settling_leaves_the_callers_parameters_as_they_were(inputs: InputProcessor) -> None:
    params = SamplingParams(logits_processors_args={"logit_bias": {"5": 1}}, stop="x")
    settled = inputs.settle(params, prompt_of(10))
    assert (params.max_tokens, params.seed, params.logits_processors_args) == (None, None, {"logit_bias": {"5": 1}})
    assert settled.selection == Selection(flat={"logit_bias": {5: 1.0}})
    assert settled.params.stop_strings == ["x"]


def test_what_the_caller_decided_stays(inputs: InputProcessor) -> None:
    params = SamplingParams(temperature=0.5, top_p=0.9, top_k=3, seed=0, max_tokens=7, n=2, stop_token_ids=[4])
    settled = inputs.settle(params, prompt_of(10))
    for name in ("temperature", "top_p", "top_k", "seed", "max_tokens", "n", "stop_token_ids"):
        assert getattr(settled.params, name) == getattr(params, name), name


def test_requests_without_a_seed_get_different_ones(inputs: InputProcessor) -> None:
    seeds = {inputs.settle(SamplingParams(), prompt_of(1)).params.seed for _ in range(20)}
    assert len(seeds) == 20


def test_more_tokens_than_the_context_has_room_for_are_refused(inputs: InputProcessor) -> None:
    assert inputs.settle(SamplingParams(max_tokens=40), prompt_of(10)).params.max_tokens == 40
    with pytest.raises(InvalidRequestError) as caught:
        inputs.settle(SamplingParams(max_tokens=41), prompt_of(10))
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    for number in ("41", "50", "10", "40"):
        assert number in str(caught.value)


def test_a_stop_token_outside_the_vocabulary_is_named(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.settle(SamplingParams(stop_token_ids=[1, VOCAB_SIZE]), prompt_of(1))
    assert caught.value.param == "stop_token_ids.1"


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"logit_bias": {str(VOCAB_SIZE): 1.0}}, f"logits_processors_args.logit_bias.{VOCAB_SIZE}"),
        ({"logit_bias": {"1": math.nan}}, "logits_processors_args.logit_bias.1"),
        ({"logit_bais": {}}, "logits_processors_args.logit_bais"),
    ],
)
def test_processor_arguments_are_checked_with_their_path(strict: InputProcessor, args: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        strict.settle(SamplingParams(logits_processors_args=args), prompt_of(1))
    assert caught.value.param == path


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Unsendable:
    """Neither JSON nor msgpack knows it."""


@pytest.mark.parametrize(
    "value",
    [2**70, "\ud800", {"deep": [2**70]}, nested(300), nested(5000), Unsendable(), {1, 2}, np.float32(1)],
    ids=["integer", "surrogate", "deep integer", "nested", "deeply nested", "object", "set", "numpy"],
)
def test_arguments_reach_the_worker_or_are_refused_here(inputs: InputProcessor, value: Any) -> None:
    params = SamplingParams(logits_processors_args={"enable_your_logits_processor": value})
    argument = "logits_processors_args.enable_your_logits_processor"
    try:
        settled = inputs.settle(params, prompt_of(1))
    except InvalidRequestError as error:
        refused = error.param or ""
    else:
        sent = AddRequest("r", [1], inputs.sequence_params(settled, 0), settled.selection)
        arrived = decoder(ToWorker).decode(encode(sent)).selection.flat
        refused = argument if arrived else ""
    assert refused.startswith(argument)


# n


@settings(max_examples=50)
@given(seed=st.integers(0, MAX_SEED), n=st.integers(1, MAX_N))
def test_every_completion_has_a_seed_of_its_own_that_repeats(inputs: InputProcessor, seed: int, n: int) -> None:
    settled = inputs.settle(SamplingParams(seed=seed, n=n), prompt_of(1))
    sequences = [inputs.sequence_params(settled, index) for index in range(n)]
    seeds = [sequence.seed for sequence in sequences]
    assert len(set(seeds)) == n
    assert seeds[0] == seed
    assert all(0 <= one <= MAX_SEED for one in seeds if one is not None)
    assert seeds == [inputs.sequence_params(settled, index).seed for index in range(n)]


def test_a_sequence_is_one_completion_without_stop_strings(inputs: InputProcessor) -> None:
    params = SamplingParams(n=3, stop=["a"], max_tokens=5, logits_processors_args={"logit_bias": {"5": 1}})
    settled = inputs.settle(params, prompt_of(1))
    sequence = inputs.sequence_params(settled, 1)
    assert (sequence.n, sequence.stop, sequence.max_tokens) == (1, None, 5)
    assert settled.selection == Selection(flat={"logit_bias": {5: 1.0}})
    # The selection carries it to the worker; a second copy would only be sent for nothing.
    assert sequence.logits_processors_args is None
    assert settled.params.n == 3


# The tokenizer's directory


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer(tmp_path)


# Bad words, lengths and logprobs


@pytest.mark.parametrize("word", ["Paris", " Paris", "the", "unbelievably", "é"])
def test_a_bad_word_is_ruled_out_at_the_beginning_and_behind_a_space(
    inputs: InputProcessor, tokenizer: Tokenizer, word: str
) -> None:
    params = inputs.settle(SamplingParams(bad_words=[word], bad_words_token_ids=[[7, 8]]), prompt_of(3)).params
    assert params.bad_words is None
    banned = params.bad_words_token_ids or []
    assert banned[0] == [7, 8]
    for text in (word.lstrip(), f"{word.lstrip()} and", f"so {word.lstrip()}"):
        token_ids = tokenizer.encode(text)
        ends = [token_ids[:end] for end in range(1, len(token_ids) + 1)]
        assert any(end[-len(tokens) :] == tokens for end in ends for tokens in banned)


def test_without_bad_words_nothing_is_ruled_out(inputs: InputProcessor) -> None:
    assert inputs.settle(SamplingParams(bad_words=[]), prompt_of(3)).params.bad_words_token_ids is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [1, VOCAB_SIZE]}, "allowed_token_ids.1"),
        ({"bad_words_token_ids": [[1], [2, VOCAB_SIZE]]}, "bad_words_token_ids.1.1"),
        ({"bad_words": ["fine", "\ud800"]}, "bad_words.1"),
        ({"min_tokens": MAX_MODEL_LEN - 2}, "min_tokens"),
    ],
)
def test_what_the_model_does_not_have_is_refused(inputs: InputProcessor, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.settle(SamplingParams(**fields), prompt_of(3))
    assert caught.value.param == param


def test_the_first_of_several_sequences_alone_computes_the_prompts_logprobs(inputs: InputProcessor) -> None:
    settled = inputs.settle(SamplingParams(n=3, prompt_logprobs=2, logprobs=1, min_tokens=4), prompt_of(3))
    params = [inputs.sequence_params(settled, index) for index in range(3)]
    assert [each.prompt_logprobs for each in params] == [2, None, None]
    assert [(each.logprobs, each.min_tokens) for each in params] == [(1, 4)] * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [2], "min_tokens": 1},
        {"allowed_token_ids": [2, 7], "min_tokens": 1, "stop_token_ids": [7]},
        {"allowed_token_ids": [7], "min_tokens": 1, "stop_token_ids": [7], "ignore_eos": True},
        {"allowed_token_ids": [7], "bad_words_token_ids": [[7]]},
        {"allowed_token_ids": [2, 7], "bad_words_token_ids": [[7], [3, 4]], "min_tokens": 1},
    ],
)
def test_a_request_that_leaves_nothing_to_generate_is_refused(inputs: InputProcessor, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="leaves nothing to generate") as caught:
        inputs.settle(SamplingParams(**fields), prompt_of(3))
    assert caught.value.param == "allowed_token_ids"


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [2]},
        {"allowed_token_ids": [2], "min_tokens": 1, "ignore_eos": True},
        {"allowed_token_ids": [2, 7], "min_tokens": 1},
        {"allowed_token_ids": [7], "bad_words_token_ids": [[7, 7]]},
        {"allowed_token_ids": [7], "stop_token_ids": [7]},
    ],
)
def test_a_request_that_leaves_a_token_is_not(inputs: InputProcessor, fields: dict[str, Any]) -> None:
    assert inputs.settle(SamplingParams(**fields), prompt_of(3)).params.allowed_token_ids
