"""The model's tokenizer for logits processors, with the part of transformers' interface that they use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Entries of tokenizer_config.json that are no plain attributes here.
_CONFIG_METHODS = frozenset(
    {*SPECIAL_TOKENS, "additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"}
)


class TokenizerFilesError(ValueError):
    """The model's directory has no tokenizer, or a damaged one."""


def read_tokenizer(path: Path) -> Any:
    """Returns the `tokenizers.Tokenizer` of a file, without limits of length; raises what the library raises."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(path))
    # Limits of length in the file belong to a training run: a server with them would truncate prompts, or pad them.
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
WORD_START = "▁"


class TokenBytes:
    """Reads token bytes from the vocabulary: byte-level BPE, or SentencePiece with byte fallback.

    `special` are the ids of special tokens, which texts usually leave out.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import ByteLevel

        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: each.content for token, each in added.items()}
        self.special = frozenset(token for token, each in added.items() if each.special)
        self._byte_of = _byte_level_alphabet() if isinstance(tokenizer.decoder, ByteLevel) else None

    def __call__(self, token_id: int) -> bytes:
        """Returns the token's bytes, b"" for an unknown id, and the text of special tokens."""
        if token_id in self._added:
            text: str = self._added[token_id]
            return text.encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of is not None:
            return bytes(self._byte_of[character] for character in piece if character in self._byte_of)
        single = BYTE_TOKEN.fullmatch(piece)
        return bytes([int(single[1], 16)]) if single else str(piece).replace(WORD_START, " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Returns the byte of each character: printable Latin-1 as itself, other bytes as characters from U+0100 on."""
    printable = set(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Encoding(dict[str, Any]):
    """Result of calling a tokenizer: `input_ids` and `attention_mask`, as keys and as attributes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ModelTokenizer:
    """The tokenizer of a model's directory, on the package `tokenizers` alone; files are read on first use.

    Methods and attributes have the meaning and the defaults that they have in transformers. Attributes that are not
    defined here are looked up in `tokenizers.Tokenizer`, then in the entries of `tokenizer_config.json`.

    `eos_token_ids`: of the model's configuration; the first one counts when the tokenizer's files name none. Every use
    raises TokenizerFilesError (a ValueError) when the directory has no readable tokenizer.
    """

    is_fast = True
    padding_side = "right"
    truncation_side = "right"

    def __init__(self, directory: str, eos_token_ids: Sequence[int] = ()) -> None:
        self.name_or_path = directory
        self._directory = Path(directory)
        self._eos_token_ids = tuple(eos_token_ids)
        # Text of single tokens: processors that search the vocabulary decode all of it for each request.
        self._pieces: dict[tuple[int, bool], str] = {}

    # The vocabulary.

    def __len__(self) -> int:
        size: int = self.backend_tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    @property
    def vocab_size(self) -> int:
        """Number of tokens without the added ones."""
        size: int = self.backend_tokenizer.get_vocab_size(with_added_tokens=False)
        return size

    def get_vocab(self) -> dict[str, int]:
        """Token → id, added tokens included; a copy."""
        vocab: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocab

    @property
    def vocab(self) -> dict[str, int]:
        """The same as `get_vocab()`."""
        return self.get_vocab()

    def get_added_vocab(self) -> dict[str, int]:
        """Token → id of the added tokens."""
        return {token.content: index for index, token in self.added_tokens_decoder.items()}

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """The same as `get_added_vocab()`."""
        return self.get_added_vocab()

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Id → `tokenizers.AddedToken` of the added tokens."""
        found: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return found

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or a list of them; an unknown token has that of `unk_token`, or None."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found: int | None = self.backend_tokenizer.token_to_id(tokens)
        return self._unknown_id if found is None else found

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id, or a list of them; None for an id that is no token's."""
        wanted = _plain(ids)
        if isinstance(wanted, int):
            token: str | None = self.backend_tokenizer.id_to_token(wanted)
            return token
        special = set(self.all_special_ids) if skip_special_tokens else ()
        return [self.backend_tokenizer.id_to_token(each) for each in wanted if each not in special]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of these tokens."""
        decoder = self.backend_tokenizer.decoder
        text: str = decoder.decode(list(tokens)) if decoder is not None else " ".join(tokens)
        return text

    def vocabulary_bytes(self, size: int) -> list[bytes]:
        """Bytes of the tokens 0 to `size` - 1, b"" for ids without a token; special tokens have their text."""
        return list(map(self.token_bytes, range(size)))

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """Returns the bytes of a token when called with its id."""
        return TokenBytes(self.backend_tokenizer)

    # Text to ids and back.

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        add_special_tokens: bool = True,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
    ) -> Any:
        """Token ids of the text, by default with the special tokens around a prompt.

        With `truncation` the first `max_length` ids. `return_tensors`: "pt" or "np" for a tensor [1, ids].
        """
        ids: list[int] = self.backend_tokenizer.encode(text, text_pair, add_special_tokens=add_special_tokens).ids
        ids = ids[:max_length] if truncation else ids
        return ids if return_tensors is None else _tensor([ids], return_tensors)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> Any:
        """Text of one token id or of a list, array or tensor of ids; of a list of lists, the list of their texts."""
        ids = _plain(token_ids)
        if isinstance(ids, int):
            key = (ids, skip_special_tokens)
            if key not in self._pieces:
                self._pieces[key] = self._decoded([ids], skip_special_tokens)
            return self._pieces[key]
        if ids and isinstance(ids[0], list):
            return self.batch_decode(ids, skip_special_tokens)
        return self._decoded(ids, skip_special_tokens)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """The text of each sequence of ids."""
        return [self._decoded(_plain(each), skip_special_tokens) for each in sequences]

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        """The tokens of the text."""
        tokens: list[str] = self.backend_tokenizer.encode(text, pair, add_special_tokens=add_special_tokens).tokens
        return tokens

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        padding: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
    ) -> Encoding:
        """`input_ids` and `attention_mask` of a text, or of each text of a list, padded to the longest if asked."""
        texts = [text] if isinstance(text, str) else list(text)
        rows = [
            self.encode(each, None, add_special_tokens, truncation=truncation, max_length=max_length) for each in texts
        ]
        masks = [[1] * len(row) for row in rows]
        if padding:
            longest, filler = max(map(len, rows), default=0), self.pad_token_id
            if filler is None and any(len(row) < longest for row in rows):
                raise ValueError("this tokenizer has no pad_token; texts of different lengths cannot be padded")
            masks = [mask + [0] * (longest - len(mask)) for mask in masks]
            rows = [row + [filler] * (longest - len(row)) for row in rows]
        if return_tensors is not None:
            return Encoding(input_ids=_tensor(rows, return_tensors), attention_mask=_tensor(masks, return_tensors))
        if isinstance(text, str):
            return Encoding(input_ids=rows[0], attention_mask=masks[0])
        return Encoding(input_ids=rows, attention_mask=masks)

    # Special tokens.

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        """Name → text of the special tokens that the tokenizer has."""
        return dict(self._special)

    @property
    def all_special_tokens(self) -> list[str]:
        """Their texts, each once."""
        return list(dict.fromkeys([*self._special.values(), *self.additional_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """Their ids."""
        ids: list[int] = self.convert_tokens_to_ids(self.all_special_tokens)
        return ids

    @cached_property
    def additional_special_tokens(self) -> list[str]:
        """The special tokens without a name."""
        listed = self._config.get("additional_special_tokens") or self._config.get("extra_special_tokens") or []
        values = listed.values() if isinstance(listed, Mapping) else listed
        return [_text(each) for each in values]

    # Files of the directory.

    @cached_property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer`."""
        path = self._directory / "tokenizer.json"
        if not self.name_or_path or not path.is_file():
            raise TokenizerFilesError(f"this model has no tokenizer: {self.name_or_path or '(no directory)'}")
        try:
            return read_tokenizer(path)
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            raise TokenizerFilesError(f"{path}: cannot be read: {error}") from None

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":
            return self.backend_tokenizer
        if name.startswith("_"):
            raise AttributeError(name)
        if name in SPECIAL_TOKENS:
            return self._special.get(name)
        if name.removesuffix("_id") in SPECIAL_TOKENS:
            return self._special_id(name.removesuffix("_id"))
        try:
            return getattr(self.backend_tokenizer, name)
        except AttributeError:
            if name in self._config and name not in _CONFIG_METHODS:
                return self._config[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name_or_path!r})"

    def _special_id(self, name: str) -> int | None:
        token = self._special.get(name)
        found: int | None = None if token is None else self.backend_tokenizer.token_to_id(token)
        if found is None and name == "eos_token" and self._eos_token_ids:
            return self._eos_token_ids[0]
        return found

    @property
    def _unknown_id(self) -> int | None:
        token = self._special.get("unk_token")
        found: int | None = None if token is None else self.backend_tokenizer.token_to_id(token)
        return found

    @cached_property
    def _special(self) -> dict[str, str]:
        given = self._read("special_tokens_map.json") | self._config
        found = {name: _text(given[name]) for name in SPECIAL_TOKENS if given.get(name)}
        if "eos_token" not in found and self._eos_token_ids:
            token = self.backend_tokenizer.id_to_token(self._eos_token_ids[0])
            if token is not None:
                found["eos_token"] = token
        return found

    @cached_property
    def _config(self) -> dict[str, Any]:
        return self._read("tokenizer_config.json")

    def _read(self, name: str) -> dict[str, Any]:
        path = self._directory / name
        if not self.name_or_path or not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise TokenizerFilesError(f"{path}: cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise TokenizerFilesError(f"{path}: is no JSON object")
        return content

    def _decoded(self, ids: Iterable[int], skip_special_tokens: bool) -> str:
        text: str = self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


@lru_cache(maxsize=8)
def model_tokenizer(directory: str, eos_token_ids: tuple[int, ...] = ()) -> ModelTokenizer:
    """The one `ModelTokenizer` of this process for a directory."""
    return ModelTokenizer(directory, eos_token_ids)


def _plain(ids: Any) -> Any:
    """Ids of numpy, torch or Paddle as an int or a list."""
    plain = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(plain, int):
        return plain
    return [each.tolist() if hasattr(each, "tolist") else each for each in plain]


def _text(token: Any) -> str:
    """The text of a special token, which files give as itself or as an object with its properties."""
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _tensor(rows: list[list[int]], kind: str) -> Any:
    if kind == "pt":
        import torch

        return torch.tensor(rows, dtype=torch.int64)
    if kind == "np":
        import numpy as np

        return np.array(rows, dtype=np.int64)
    raise ValueError(f"return_tensors: {kind!r} is not known here; give 'pt' or 'np'")
