from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as FastTokenizer

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.model_tokenizer import TokenBytes

IM_END = 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The real tokenizer of the default model."""
    return Tokenizer(resolve_model("smollm2-135m", show_progress=False).directory)


@settings(max_examples=80)
@given(st.text(st.characters(codec="utf-8"), max_size=20) | st.just("naïve 🙂 한국어\n\tx"))
def test_the_bytes_of_its_tokens_make_up_a_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    found = b"".join(tokenizer.token_bytes(token) for token in token_ids)
    # The default model's vocabulary lacks some bytes.
    assert found.decode(errors="replace") == tokenizer.decode(token_ids)


def test_special_tokens_are_spelled_out(tokenizer: Tokenizer) -> None:
    assert isinstance(tokenizer.token_bytes, TokenBytes)
    assert IM_END in tokenizer.token_bytes.special
    assert tokenizer.token_bytes(IM_END) == b"<|im_end|>"
    assert tokenizer.token_text(IM_END) == "<|im_end|>"


def test_an_id_without_a_token_has_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**6) == b""


@pytest.mark.parametrize(
    ("piece", "expected"), [("<0xE2>", b"\xe2"), ("▁the", b" the"), ("né", "né".encode()), ("<0xZZ>", b"<0xZZ>")]
)
def test_sentencepiece_vocabularies_are_read_too(piece: str, expected: bytes) -> None:
    fast = FastTokenizer(models.WordLevel({piece: 0, "<unk>": 1}, unk_token="<unk>"))
    fast.add_special_tokens([AddedToken("<s>")])
    token_bytes = TokenBytes(fast)
    assert token_bytes(0) == expected
    assert token_bytes(fast.token_to_id("<s>")) == b"<s>"
