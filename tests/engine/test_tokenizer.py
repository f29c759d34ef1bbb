"""Tokens become text one by one, whatever tokens they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from fastdeploy_lp.config import ModelConfig
from fastdeploy_lp.engine.prepare.input_processor import InputProcessor
from fastdeploy_lp.engine.tokenizer import SHORT_TEXT, Cut, Tokenizer
from fastdeploy_lp.logits_processor import RequestArgsValidator
from fastdeploy_lp.request.prompt_options import PromptOptions

# Llama 2's way: a byte that no piece has is a token of its own.
VOCAB = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "▁c", "▁"]
BYTE = 1


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A SentencePiece vocabulary with bytes as a last resort."""
    pieces = {piece: number for number, piece in enumerate(VOCAB)}
    made = FastTokenizer(models.BPE(pieces, [], byte_fallback=True, unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def test_limits_of_length_in_the_file_do_not_apply(tmp_path: Path) -> None:
    """Files of embedding models often have them; a prompt that is too long is refused, and none is filled up."""
    limited = FastTokenizer(models.WordLevel({"a": 0, "[PAD]": 1, "[UNK]": 2}, unk_token="[UNK]"))
    limited.pre_tokenizer = pre_tokenizers.Whitespace()
    limited.enable_truncation(max_length=5)
    limited.enable_padding(length=8, pad_id=1)
    limited.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    for count in (1, 9, SHORT_TEXT):
        assert tokenizer.encode("a " * count) == [0] * count


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Words 2 to 11, between a token 0 and a token 1 if special tokens are added."""
    vocabulary = {"<s>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, 12)}}
    made = FastTokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 1)])
    folder = tmp_path_factory.mktemp("framed")
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@given(st.lists(st.integers(2, 11), max_size=9), st.integers(3, 14), st.booleans(), st.sampled_from(["left", "right"]))
def test_a_cut_text_keeps_its_special_tokens(
    framed: Tokenizer, words: list[int], most: int, special: bool, side: str
) -> None:
    text, room = " ".join(f"w{word}" for word in words), most - 2 * special
    kept = words[max(len(words) - room, 0) :] if side == "left" else words[:room]
    expected = [0, *kept, 1] if special else kept
    assert framed.encode_cut(text, Cut(most, side), add_special_tokens=special) == expected


def test_special_tokens_are_added_where_they_are_asked_for(framed: Tokenizer) -> None:
    inputs = InputProcessor(ModelConfig("m", "d", "m", 12, 50, (1,)), framed, RequestArgsValidator([], 12))
    text, added, bare = "w2 w3", [0, 2, 3, 1], [2, 3]
    for options, of_prompt, of_chat in ((None, added, bare), (True, added, added), (False, bare, bare)):
        special = PromptOptions(add_special_tokens=options)
        assert inputs.prompt(text, options=special).token_ids == of_prompt
        assert inputs.pooling_prompt(text, options=special).token_ids == of_prompt
        assert inputs.rendered_prompt(text, special).token_ids == of_chat


def test_a_long_text_is_cut_too(framed: Tokenizer) -> None:
    text = f"w3 {'w2 ' * SHORT_TEXT} w4"
    assert framed.encode_cut(text, Cut(4, "left")) == [0, 2, 4, 1]
    assert framed.encode_cut(text, Cut(4, "right")) == [0, 3, 2, 1]


def test_a_cut_shorter_than_the_special_tokens_is_kept(framed: Tokenizer) -> None:
    assert framed.encode_cut("w2 w3", Cut(1, "left")) == [1]
    assert framed.encode_cut("w2 w3", Cut(1, "right")) == [0]
    assert framed.encode_cut("w2 w3", Cut(2, "left")) == [0, 1]


def pushed(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    decoder = tokenizer.decode_stream()
    return [decoder.push(token) for token in token_ids]


def test_a_byte_that_breaks_a_character_costs_that_character_alone(byte_fallback: Tokenizer) -> None:
    letter, broken, b, c = BYTE + ord("a"), BYTE + 0xFF, VOCAB.index("b"), VOCAB.index("▁c")
    assert pushed(byte_fallback, [letter, broken, b, c, c]) == ["a", "", "\ufffdb", " c", " c"]


@given(st.lists(st.integers(0, len(VOCAB) + 5), max_size=30))
def test_any_tokens_have_a_text(byte_fallback: Tokenizer, token_ids: list[int]) -> None:
    assert all(isinstance(text, str) for text in pushed(byte_fallback, token_ids))


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_bytes_of_a_text_are_told_as_that_text(byte_fallback: Tokenizer, text: str) -> None:
    first = VOCAB.index("b")
    tokens = [first, *(BYTE + byte for byte in text.encode()), first]
    assert "".join(pushed(byte_fallback, tokens)) == f"b{text}b"
