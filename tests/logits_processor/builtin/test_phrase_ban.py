from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat import encode
from tokenizers import AddedToken, Tokenizer, decoders, models

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.builtin.phrase_ban import (
    MOST_TOKENS,
    OutputText,
    PhraseBanLogitsProcessor,
    PhraseSet,
    TokenTexts,
    folded,
)
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness
from fastdeploy_lp.logits_processor.testing.loading import standalone_model
from fastdeploy_lp.model_tokenizer import TokenBytes
from fastdeploy_lp.request.sampling_params import SamplingParams

NAME = "PhraseBanLogitsProcessor"
LETTERS = "abAB ßéÉ🙂k\u212a"
words = st.text(st.sampled_from(LETTERS), min_size=1, max_size=4)


@settings(max_examples=300)
@given(st.sets(words, min_size=1, max_size=12), st.text(st.sampled_from(LETTERS), max_size=24), st.integers(0, 24))
def test_the_first_phrase_that_ends_in_the_new_text_is_found(phrases: set[str], text: str, after: int) -> None:
    text, wanted = folded(text), [folded(each) for each in phrases]
    starts = [
        end - len(each)
        for end in range(after + 1, len(text) + 1)
        for each in wanted
        if end >= len(each) and text[end - len(each) : end] == each
    ]
    found = PhraseSet(phrases)
    assert found.first_start(text, after) == min(starts, default=None)
    assert found.longest == max(map(len, wanted))


@pytest.fixture(scope="module")
def texts() -> TokenTexts:
    """Tokens 0 to 255 are bytes; then two words and a special token."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁Ab": 256, "bA": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return TokenTexts(TokenBytes(tokenizer), shows_special=False)


END = 258
pieces = st.lists(
    st.sampled_from(["b", "A", "é", "É", "🙂", "ß"]).map(lambda text: list(text.encode()))
    | st.sampled_from([[256], [257], [END], [0xC3], [0xFF]]),
    max_size=12,
).map(lambda runs: [token for run in runs for token in run])


@settings(max_examples=300)
@given(st.sets(st.text(st.sampled_from("abéß🙂 "), min_size=1, max_size=3), min_size=1, max_size=6), pieces)
def test_a_phrase_is_found_with_the_token_that_completes_it(
    texts: TokenTexts, phrases: set[str], tokens: list[int]
) -> None:
    wanted = [folded(each) for each in phrases]
    output: list[int] = []
    state = OutputText(output, PhraseSet(phrases), texts)
    for token in tokens:
        output.append(token)
        count = state.read()
        # An incomplete character at the end is no text yet.
        text = b"".join(map(texts.bytes_of, output)).decode(errors="ignore").casefold()
        whole = b"".join(map(texts.bytes_of, output)).decode(errors="replace").casefold()
        if count == 0:
            assert not any(each in text and each in whole for each in wanted)
            continue
        kept = b"".join(map(texts.bytes_of, output[:-count])).decode(errors="replace").casefold()
        assert any(each in whole for each in wanted)
        assert not any(each in kept for each in wanted)
        back = b"".join(map(texts.bytes_of, output[-count:])).decode(errors="replace").casefold()
        assert any(each in back for each in wanted)
        return


def test_special_tokens_count_where_the_text_has_them(texts: TokenTexts) -> None:
    tokens = [ord("a"), END, ord("b")]
    assert OutputText(tokens, PhraseSet(["AB"]), texts).read() == 3
    shown = TokenTexts(texts._token_bytes, shows_special=True)
    assert OutputText(tokens, PhraseSet(["AB"]), shown).read() == 0
    assert OutputText(tokens, PhraseSet(["A<END>B"]), shown).read() == 3


def test_the_beginning_of_a_character_counts_as_the_beginning(texts: TokenTexts) -> None:
    tokens = [ord("x"), *"🙂".encode(), ord("b")]
    assert OutputText(tokens, PhraseSet(["🙂B"]), texts).read() == 5
    assert OutputText([ord("x"), 256], PhraseSet([" ab"]), texts).read() == 1


def test_text_that_was_searched_is_not_searched_again(texts: TokenTexts) -> None:
    output = [ord("a"), ord("b"), ord("x")]
    state = OutputText(output, PhraseSet(["ab", "xc"]), texts)
    assert state.read() == 0
    output.append(ord("c"))
    assert state.read() == 2


def test_a_long_output_is_read_from_where_a_phrase_may_begin(texts: TokenTexts) -> None:
    output = [ord("x")] * 2000
    state = OutputText(output, PhraseSet(["abc"]), texts)
    assert state.read() == 0
    for token in b"abab":
        output.append(token)
        assert state.read() == 0
    output.append(ord("c"))
    assert state.read() == 3
    assert len(state._text) <= MOST_TOKENS + 5


@pytest.mark.parametrize(
    ("phrases", "most"),
    [(["Acme"], 4), (["é", "abc"], 3), (["ß"], 2), (["🙂" * 128], MOST_TOKENS), ([], 0), (["\ud800x"], 2)],
)
def test_it_takes_back_as_many_tokens_as_a_phrase_may_have(phrases: list[str], most: int) -> None:
    assert PhraseBanLogitsProcessor.rewind_for({"banned_phrases": phrases}) == most


def test_in_a_chain_it_takes_back_the_phrase_and_bans_its_first_token() -> None:
    with standalone_model(1024) as config:
        harness = ProcessorHarness(NAME, fd_config=config)
        x, b, upper = (config.tokenizer.encode(letter)[0] for letter in "xbB")
        harness.enter("r", {"banned_phrases": ["bb"]})
        harness.enter("other", {"banned_phrases": ["bbb", "q"]})
        for token in (x, b):
            harness.step(tokens=dict.fromkeys(("r", "other"), token))
            assert harness.actions == {}
        harness.step(tokens=dict.fromkeys(("r", "other"), upper))
        harness.step()
        assert harness.actions.keys() == {"r"}
        rewind = harness.actions["r"].rewind
        assert rewind is not None
        assert (rewind.count, rewind.ban) == (2, {b})


def validated(phrases: Any, *, with_tokenizer: bool = True) -> Any:
    validator = RequestArgsValidator(load_processors([NAME]), 1024, encode if with_tokenizer else None)
    return validator.validate(SamplingParams(logits_processors={NAME: {"banned_phrases": phrases}}))


def test_phrases_need_a_tokenizer() -> None:
    assert validated(["Acme"]).args_for(NAME) == {"banned_phrases": ["Acme"]}
    assert validated([], with_tokenizer=False).args_for(NAME) == {"banned_phrases": []}
    with pytest.raises(RequestArgsError, match="there is no tokenizer here"):
        validated(["Acme"], with_tokenizer=False)
