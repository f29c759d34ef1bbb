"""Bytes of single tokens."""

from __future__ import annotations

import re
from itertools import chain

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
WORD_START = "▁"


class TokenBytes:
    """Reads token bytes from the vocabulary: byte-level BPE, or SentencePiece with byte fallback."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {token: added.content for token, added in tokenizer.get_added_tokens_decoder().items()}
        self._byte_of = _byte_level_alphabet() if isinstance(tokenizer.decoder, ByteLevel) else None

    def __call__(self, token_id: int) -> bytes:
        """Returns the token's bytes, b"" for an unknown id, and the text of special tokens."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of is not None:
            return bytes(self._byte_of[character] for character in piece if character in self._byte_of)
        single = BYTE_TOKEN.fullmatch(piece)
        return bytes([int(single[1], 16)]) if single else piece.replace(WORD_START, " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Returns the byte of each character: printable Latin-1 as itself, other bytes as characters from U+0100 on."""
    printable = set(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
