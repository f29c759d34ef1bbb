"""Converts GGUF metadata to tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from fastdeploy_lp.checkpoint.gguf_config import token_id
from fastdeploy_lp.checkpoint.gguf_file import GgufFile
from fastdeploy_lp.checkpoint.gguf_sentencepiece import sentencepiece_tokenizer
from fastdeploy_lp.checkpoint.pre_tokenizers import PRE_TOKENIZATIONS, PreTokenization

_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"

# GGUF's names, whatever the model: byte-level byte-pair encoding, and SentencePiece's.
_BYTE_LEVEL_BPE, _SENTENCEPIECE = "gpt2", "llama"

_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Returns the tokenizer of a GGUF model, with the control tokens as special added tokens.

    Raises CheckpointError for a kind of tokenizer other than byte-level BPE and SentencePiece, an unknown way of
    splitting text, and damaged tables.
    """
    if _kind(file) == _SENTENCEPIECE:
        unknown = token_id(file, _NAMED_TOKENS["unk_token"]) or 0
        tokenizer = sentencepiece_tokenizer(file, file.texts(_TOKENS), _types(file), unknown)
    else:
        tokenizer = _byte_level_tokenizer(file)
    tokenizer.add_tokens(_added_tokens(file))
    if processor := _post_processor(file):
        tokenizer.post_processor = processor
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """Returns the tokenizer_config.json of a GGUF model; missing tokens and a missing chat template are left out.

    Raises CheckpointError for a token id outside the vocabulary.
    """
    tokens = file.texts(_TOKENS)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds_bos(file),
        "clean_up_tokenization_spaces": False,
    }
    for name, role in _NAMED_TOKENS.items():
        if (token := token_id(file, role)) is not None:
            config[name] = tokens[token]
    if (template := file.optional("tokenizer.chat_template", str, None)) is not None:
        config["chat_template"] = template
    return config


def _kind(file: GgufFile) -> str:
    kind = file.required("tokenizer.ggml.model", str)
    if kind not in (_BYTE_LEVEL_BPE, _SENTENCEPIECE):
        instead = f"give a GGUF with a byte-level BPE ({_BYTE_LEVEL_BPE!r}) or SentencePiece ({_SENTENCEPIECE!r}) one"
        raise file.error(f"tokenizer model {kind!r} is not supported", instead)
    return kind


def _byte_level_tokenizer(file: GgufFile) -> Tokenizer:
    rules = _pre_tokenization(file)
    tokenizer = Tokenizer(_byte_pair_model(file, rules))
    if rules.normalize is not None:
        tokenizer.normalizer = rules.normalize()
    tokenizer.pre_tokenizer = rules.split()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenization(file: GgufFile) -> PreTokenization:
    name = file.required("tokenizer.ggml.pre", str)
    if name not in PRE_TOKENIZATIONS:
        known = ", ".join(sorted(PRE_TOKENIZATIONS))
        raise file.error(f"pre-tokenizer {name!r} is not supported", f"give a GGUF with one of: {known}")
    return PRE_TOKENIZATIONS[name]


def _byte_pair_model(file: GgufFile, rules: PreTokenization) -> BPE:
    tokens = file.texts(_TOKENS)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise file.error(f"metadata {_TOKENS} has {len(tokens) - len(vocabulary)} tokens twice")
    merges = []
    for line in file.texts(_MERGES):
        left, _, right = line.partition(" ")
        # The library would name the missing token but not the file.
        if not {left, right, left + right} <= vocabulary.keys():
            raise file.error(f"metadata {_MERGES} has {line!r}, which is not made of tokens")
        merges.append((left, right))
    return BPE(vocabulary, merges, ignore_merges=rules.ignore_merges)


def _added_tokens(file: GgufFile) -> list[AddedToken]:
    # They are already in the vocabulary and keep their ids; adding them makes their text a single token.
    return [
        AddedToken(token, special=kind == TokenType.CONTROL, normalized=False)
        for token, kind in zip(file.texts(_TOKENS), _types(file), strict=True)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]


def _types(file: GgufFile) -> list[int]:
    count, types = len(file.texts(_TOKENS)), file.required(_TYPES, list)
    if len(types) != count:
        raise file.error(f"metadata {_TYPES} has {len(types)} entries for {count} tokens")
    return types


def _adds_bos(file: GgufFile) -> bool:
    usual = True if _kind(file) == _SENTENCEPIECE else _pre_tokenization(file).add_bos
    return file.optional("tokenizer.ggml.add_bos_token", bool, usual)


def _post_processor(file: GgufFile) -> TemplateProcessing | None:
    if not _adds_bos(file):
        return None
    bos = token_id(file, "bos_token_id")
    if bos is None:
        raise file.error("its texts start with a BOS token, but metadata tokenizer.ggml.bos_token_id is missing")
    token = file.texts(_TOKENS)[bos]
    return TemplateProcessing(single=[token, "$A"], pair=[token, "$A", token, "$B:1"], special_tokens=[(token, bos)])
