"""SentencePiece vocabularies of GGUF files: SentencePiece itself says which tokens a text has."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from gguf.constants import TokenType
from tokenizers import Tokenizer

from fastdeploy_lp.checkpoint import CheckpointError
from fastdeploy_lp.checkpoint.gguf_reader import read_gguf
from fastdeploy_lp.checkpoint.gguf_sentencepiece import MAX_PIECE
from fastdeploy_lp.checkpoint.gguf_tokenizer import build_tokenizer, tokenizer_config

SAMPLE = Path(__file__).parents[2] / "docs" / "architecture.md"
TEXTS = [
    "",
    " ",
    "  two  spaces  ",
    "A processor edits logits.",
    "tabs\tand\nlines\n\n",
    "1234567890 3.14159",
    "naïve café — “quoted”",
    "中文字符 😀 👩\u200d👩\u200d👧",
    "<0x0A> is written out",
    "aaaaaaaaaa aaaaaaa",
]


@cache
def trained_model(byte_tokens: bool) -> sentencepiece.SentencePieceProcessor:
    """A model as Llama's are trained: byte-pair merges, no normalization."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SAMPLE.read_text().splitlines()),
        model_writer=trained,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=byte_tokens,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())


@pytest.fixture(params=[True, False], ids=["with byte tokens", "with an unknown token alone"])
def reference(request: pytest.FixtureRequest) -> sentencepiece.SentencePieceProcessor:
    return trained_model(request.param)


def metadata_of(reference: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """The vocabulary as the converters of GGUF files write it."""
    ids = range(reference.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [reference.id_to_piece(token) for token in ids],
        "tokenizer.ggml.scores": [float(reference.get_score(token)) for token in ids],
        "tokenizer.ggml.token_type": [int(kind_of(reference, token)) for token in ids],
        "tokenizer.ggml.unknown_token_id": reference.unk_id(),
        "tokenizer.ggml.bos_token_id": reference.bos_id(),
        "tokenizer.ggml.eos_token_id": reference.eos_id(),
    }


def kind_of(reference: sentencepiece.SentencePieceProcessor, token: int) -> TokenType:
    if reference.is_unknown(token):
        return TokenType.UNKNOWN
    if reference.is_control(token):
        return TokenType.CONTROL
    return TokenType.BYTE if reference.is_byte(token) else TokenType.NORMAL


def converted(tiny: Any, metadata: dict[str, Any], tmp_path: Path) -> Tokenizer:
    for key in ("tokenizer.ggml.pre", "tokenizer.ggml.merges", "tokenizer.ggml.eot_token_id"):
        tiny.metadata.pop(key, None)
    tiny.metadata.update(metadata)
    return build_tokenizer(read_gguf(tiny.write(tmp_path / "tiny.gguf")))


def test_texts_have_the_tokens_that_sentencepiece_gives_them(
    tiny: Any, reference: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    tokenizer = converted(tiny, metadata_of(reference), tmp_path)
    for text in [*TEXTS, *SAMPLE.read_text().splitlines()]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == reference.decode(ids).replace(" \u2047 ", "<unk>"), text


def test_random_unicode_survives_with_byte_tokens(tiny: Any, tmp_path: Path) -> None:
    tokenizer = converted(tiny, metadata_of(trained_model(byte_tokens=True)), tmp_path)
    choose = random.Random(0)
    for _ in range(300):
        limit = choose.choice([0x80, 0x800, 0x10000, sys.maxunicode + 1])
        points = [point for point in choose.choices(range(limit), k=12) if point not in range(0xD800, 0xE000)]
        text = "".join(map(chr, points)).replace("\u2581", "")
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize(("prefixed", "expected"), [(True, "▁"), (False, "A")])
def test_a_text_begins_with_a_space_unless_the_gguf_says_no(
    tiny: Any, tmp_path: Path, reference: sentencepiece.SentencePieceProcessor, prefixed: bool, expected: str
) -> None:
    metadata = metadata_of(reference) | {"tokenizer.ggml.add_space_prefix": prefixed}
    tokenizer = converted(tiny, metadata, tmp_path)
    encoded = tokenizer.encode("A B", add_special_tokens=False)
    assert encoded.tokens[0].startswith(expected)
    assert tokenizer.decode(encoded.ids) == "A B"


def test_a_text_starts_with_bos_unless_the_gguf_says_no(
    tiny: Any, tmp_path: Path, reference: sentencepiece.SentencePieceProcessor
) -> None:
    metadata = metadata_of(reference)
    tokenizer = converted(tiny, metadata, tmp_path)
    assert tokenizer.encode("A").tokens[0] == "<s>"
    assert tokenizer_config(read_gguf(tmp_path / "tiny.gguf"))["add_bos_token"] is True
    tokenizer = converted(tiny, metadata | {"tokenizer.ggml.add_bos_token": False}, tmp_path)
    assert tokenizer.encode("A").tokens[0] != "<s>"


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(metadata: dict[str, Any]) -> None:
        metadata[f"tokenizer.ggml.{name}"] = change(metadata[f"tokenizer.ggml.{name}"])

    return apply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda metadata: metadata.pop("tokenizer.ggml.scores"), r"no metadata tokenizer\.ggml\.scores"),
        (changed("scores", lambda scores: scores[:-1]), r"scores has 599 entries for 600 tokens"),
        (changed("scores", lambda scores: [*scores[:-1], float("nan")]), "scores is not a list of numbers"),
        (changed("scores", lambda scores: [str(score) for score in scores]), "scores is not a list of numbers"),
        (changed("tokens", lambda tokens: [*tokens[:-1], tokens[-2]]), "tokens has 1 tokens twice"),
        (changed("tokens", lambda tokens: [*tokens[:-1], "x" * (MAX_PIECE + 1)]), "has 513 characters; .* at most 512"),
        (changed("token_type", lambda types: types[:-1]), r"token_type has 599 entries for 600 tokens"),
        (changed("unknown_token_id", lambda _: 5000), "unknown_token_id is 5000, which is not in the vocabulary"),
    ],
)
def test_damaged_tables_are_named(
    tiny: Any,
    tmp_path: Path,
    reference: sentencepiece.SentencePieceProcessor,
    change: Callable[[dict[str, Any]], None],
    reason: str,
) -> None:
    metadata = metadata_of(reference)
    change(metadata)
    with pytest.raises(CheckpointError, match=reason):
        converted(tiny, metadata, tmp_path)
