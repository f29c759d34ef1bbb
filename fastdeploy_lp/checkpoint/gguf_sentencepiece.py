"""Converts the SentencePiece vocabularies of GGUF files (Llama 2, Mistral, Phi-3) to a byte-pair model.

SentencePiece joins the neighbours whose union has the highest score. The same order as a list of merges, so that
`tokenizers` can apply it, is every pair of pieces that makes a piece, by the score of that piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gguf.constants import TokenType
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from fastdeploy_lp.checkpoint.gguf_file import GgufFile

_SCORES = "tokenizer.ggml.scores"
# SentencePiece's sign for a space.
SPACE = "\u2581"
# A longer piece would make as many merges as it has characters, for each of its characters.
MAX_PIECE = 512


def sentencepiece_tokenizer(file: GgufFile, tokens: list[str], types: list[int], unknown: int) -> Tokenizer:
    """Returns the tokenizer without its added tokens and its post-processor.

    tokens, types: text and `TokenType` of each token id. unknown: the id for text without tokens or byte tokens.

    Raises CheckpointError for scores that are missing or no numbers, a token twice, and a piece that is too long.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise file.error(f"metadata tokenizer.ggml.tokens has {len(tokens) - len(vocabulary)} tokens twice")
    model = BPE(
        vocabulary,
        _merges(file, vocabulary, _scores(file, tokens), types),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in types,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.optional("tokenizer.ggml.add_space_prefix", bool, True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _scores(file: GgufFile, tokens: list[str]) -> list[float]:
    scores = file.required(_SCORES, list)
    if len(scores) != len(tokens):
        raise file.error(f"metadata {_SCORES} has {len(scores)} entries for {len(tokens)} tokens")
    # NaN has no order.
    if not all(type(score) in (float, int) and score == score for score in scores):
        raise file.error(f"metadata {_SCORES} is not a list of numbers")
    return scores


def _merges(
    file: GgufFile, vocabulary: Mapping[str, int], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    joined = (TokenType.NORMAL, TokenType.USER_DEFINED)
    for token, index in vocabulary.items():
        if types[index] not in joined:
            continue
        if len(token) > MAX_PIECE:
            raise file.error(f"token {index} has {len(token)} characters; a piece has at most {MAX_PIECE}")
        for left, right in _splits(token):
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], vocabulary[left], vocabulary[right], (left, right)))
    return [pair for *_, pair in sorted(found)]


def _splits(token: str) -> Iterator[tuple[str, str]]:
    return ((token[:place], token[place:]) for place in range(1, len(token)))
