"""The model's tokenizer and chat template, read from its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream

from fastdeploy_lp.checkpoint.files import read_json_object
from fastdeploy_lp.engine.chat_template import ChatOptions, ChatTemplate, compiled
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.token_bytes import TokenBytes

# Characters.
SHORT_TEXT = 16_384


class Tokenizer:
    """Text to token ids and back; `chat_template` replaces the model's own.

    Raises ValueError for a directory without a readable `tokenizer.json` or with a damaged `tokenizer_config.json`, and
    for a template that does not compile.
    """

    handles_text = True

    def __init__(self, directory: Path, *, chat_template: str | None = None) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{directory}: no tokenizer.json")
        try:
            self._tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            raise ValueError(f"{path}: cannot be read: {error}") from None
        self.token_bytes: Callable[[int], bytes] = TokenBytes(self._tokenizer)
        # Characters of the longest token; byte-level vocabularies have one for each byte.
        self.longest_token = max(map(len, self._tokenizer.get_vocab()), default=1)
        config_path = directory / "tokenizer_config.json"
        config = read_json_object(config_path) if config_path.is_file() else {}
        try:
            self.chat_template_source = chat_template or _chat_template_source(directory, config)
            self.special_tokens = _special_tokens(config)
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"{config_path}: damaged special tokens or chat template ({error!r})") from None
        self._chat_template = self._compiled(self.chat_template_source) if self.chat_template_source else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of the text."""
        if len(text) > SHORT_TEXT:
            # Leaves out where each token begins, which takes most of a long text's time.
            (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        else:
            found = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = found.ids
        return ids

    def encode_phrase(self, text: str) -> list[int]:
        """Token ids of a piece of text, with none that begin or end a whole one."""
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the tokens, special ones left out unless told otherwise; incomplete UTF-8 shows as U+FFFD."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """What one token reads as, special ones too; U+FFFD where its bytes are no whole characters."""
        return self.token_bytes(token_id).decode(errors="replace")

    def decode_stream(self, *, skip_special_tokens: bool = True) -> TokenDecoder:
        """A decoder that takes one token at a time."""
        return TokenDecoder(self._tokenizer, skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> str:
        """The prompt for a conversation; raises InvalidRequestError if there is no chat template or it refuses them."""
        own = options.chat_template if options is not None else None
        template = self._chat_template if own is None else self._compiled(own)
        if template is None:
            raise InvalidRequestError("messages", "this model has no chat template; send a completion prompt instead")
        return template.render(messages, options)

    def _compiled(self, source: str) -> ChatTemplate:
        return compiled(source, self.special_tokens, "chat_template")


class TokenDecoder:
    """Gives text as soon as it is whole characters."""

    def __init__(self, tokenizer: FastTokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = self._begun()
        # Those that no text was given for yet.
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that this token completes, "" while a character is incomplete."""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception:  # noqa: BLE001 - the library raises nothing more specific
            # Bytes that are no character may change how the ones before them read, which were told already.
            self._stream = self._begun()
            text = "".join(self._stream.step(self._tokenizer, each) or "" for each in self._pending)
        if text:
            self._pending.clear()
        return text or ""

    def _begun(self) -> DecodeStream:
        return DecodeStream(skip_special_tokens=self._skip_special_tokens)


def _chat_template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` wins over `tokenizer_config.json`; of several named templates, the one named default."""
    jinja = directory / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text()
    found = config.get("chat_template")
    if isinstance(found, list):
        return next((entry["template"] for entry in found if entry["name"] == "default"), None)
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    values = {name: config[name] for name in names if config.get(name)}
    return {name: value["content"] if isinstance(value, dict) else value for name, value in values.items()}
