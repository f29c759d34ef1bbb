"""Converts GGUF metadata to tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from fastdeploy_lp.checkpoint.gguf_config import token_id
from fastdeploy_lp.checkpoint.gguf_file import GgufFile
from fastdeploy_lp.checkpoint.pre_tokenizers import PRE_TOKENIZATIONS, PreTokenization

_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"

# GGUF's name for byte-level byte-pair encoding, of any model.
_BYTE_LEVEL_BPE = "gpt2"

_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Returns the tokenizer of a GGUF model: byte-level BPE, with the control tokens as special added tokens.

    Raises CheckpointError for another kind of tokenizer, an unknown way of splitting text, and damaged tables.
    """
    kind = file.required("tokenizer.ggml.model", str)
    if kind != _BYTE_LEVEL_BPE:
        instead = f"give a GGUF with a byte-level BPE tokenizer ({_BYTE_LEVEL_BPE!r})"
        raise file.error(f"tokenizer model {kind!r} is not supported", instead)
    rules = _pre_tokenization(file)
    tokenizer = Tokenizer(_byte_pair_model(file, rules))
    if rules.normalize is not None:
        tokenizer.normalizer = rules.normalize()
    tokenizer.pre_tokenizer = rules.split()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added_tokens(file))
    if processor := _post_processor(file, rules):
        tokenizer.post_processor = processor
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """Returns the tokenizer_config.json of a GGUF model; missing tokens and a missing chat template are left out.

    Raises CheckpointError for a token id outside the vocabulary.
    """
    tokens = file.texts(_TOKENS)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds_bos(file, _pre_tokenization(file)),
        "clean_up_tokenization_spaces": False,
    }
    for name, role in _NAMED_TOKENS.items():
        if (token := token_id(file, role)) is not None:
            config[name] = tokens[token]
    if (template := file.optional("tokenizer.chat_template", str, None)) is not None:
        config["chat_template"] = template
    return config


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
    tokens, types = file.texts(_TOKENS), file.required(_TYPES, list)
    if len(types) != len(tokens):
        raise file.error(f"metadata {_TYPES} has {len(types)} entries for {len(tokens)} tokens")
    # They are already in the vocabulary and keep their ids; adding them makes their text a single token.
    return [
        AddedToken(token, special=kind == TokenType.CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]


def _adds_bos(file: GgufFile, rules: PreTokenization) -> bool:
    return file.optional("tokenizer.ggml.add_bos_token", bool, rules.add_bos)


def _post_processor(file: GgufFile, rules: PreTokenization) -> TemplateProcessing | None:
    if not _adds_bos(file, rules):
        return None
    bos = token_id(file, "bos_token_id")
    if bos is None:
        raise file.error("its texts start with a BOS token, but metadata tokenizer.ggml.bos_token_id is missing")
    token = file.texts(_TOKENS)[bos]
    return TemplateProcessing(single=[token, "$A"], pair=[token, "$A", token, "$B:1"], special_tokens=[(token, bos)])
