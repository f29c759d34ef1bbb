"""The model's tokenizer and chat template, loaded from its directory, and texts that must fit its context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream
from typing_extensions import override

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import read_json_object
from fastdeploy_lp.engine.chat_template import ChatOptions, ChatTemplate, compiled
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.model_tokenizer import TokenBytes, read_tokenizer
from fastdeploy_lp.request.limits import MAX_TOKENIZED_CHARACTERS
from fastdeploy_lp.request.prompt_options import LEFT

# Characters.
SHORT_TEXT = 16_384
# Compared by name, since each Rust extension has its own class.
PANIC = "PanicException"

TOO_LONG = "context_length_exceeded"
# Normalization may shorten a text before tokenization, but hardly by this factor.
NORMALIZATION = 4
# Characters. Shorter texts are tokenized quickly and with little memory.
QUICK_TEXT = 65_536
# Upper bound of characters per token in ordinary text.
CHARACTERS_A_TOKEN = 8
# Tokens that a cut may add, from the words at the cut.
TOKENS_AT_A_CUT = 64


class UnencodableTextError(ValueError):
    """The tokenizer fails on a text because of its file."""


@dataclass(frozen=True)
class Cut:
    """Number of tokens that are kept of a longer prompt, and the side that is cut off: "left" or "right"."""

    most: int
    side: str

    def of(self, token_ids: list[int]) -> list[int]:
        """Returns the tokens that are kept."""
        return token_ids[-self.most :] if self.side == LEFT else token_ids[: self.most]


class Tokenizer:
    """Converts text to token ids and back; `chat_template` replaces the model's template.

    Raises CheckpointError (a ValueError) for a directory without a readable `tokenizer.json` or with a damaged
    `tokenizer_config.json`, and for a template that does not compile.
    """

    handles_text = True

    def __init__(self, directory: Path, *, chat_template: str | None = None) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{directory}: no tokenizer.json")
        try:
            self._tokenizer: FastTokenizer = read_tokenizer(path)
        except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception
            _require_library_error(error)
            raise CheckpointError(f"{path}: cannot be read: {error}") from None
        self.token_bytes: Callable[[int], bytes] = TokenBytes(self._tokenizer)
        # Characters of the longest token; byte-level vocabularies have one for each byte.
        self.longest_token = max(map(len, self._tokenizer.get_vocab()), default=1)
        config_path = directory / "tokenizer_config.json"
        config = read_json_object(config_path) if config_path.is_file() else {}
        self.chat_template_source = chat_template or _chat_template_source(directory, config)
        self.special_tokens = _special_tokens(config_path, config)
        self._chat_template = self._compiled(self.chat_template_source) if self.chat_template_source else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text; raises UnencodableTextError if a damaged tokenizer fails on it."""
        ids: list[int] = self._encoding(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_cut(self, text: str, cut: Cut, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the same of a text that is cut, with its special tokens unless they alone are too many."""
        found = self._encoding(text, add_special_tokens=False)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
        found.truncate(max(cut.most - special, 0), direction=cut.side)
        ids: list[int] = self._tokenizer.post_process(found, None, add_special_tokens).ids
        return cut.of(ids)

    def _encoding(self, text: str, *, add_special_tokens: bool) -> Encoding:
        try:
            if len(text) > SHORT_TEXT:
                # Without token offsets, which take most of the time of a long text.
                (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            else:
                found = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception
            _require_library_error(error)
            raise UnencodableTextError(f"this model's tokenizer cannot encode it: {error}") from None
        return found

    def encode_phrase(self, text: str) -> list[int]:
        """Returns the token ids of a phrase, without special tokens at its beginning and end."""
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of the tokens, by default without special tokens; incomplete UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Returns the text of one token, special or not; U+FFFD replaces bytes of incomplete characters."""
        return self.token_bytes(token_id).decode(errors="replace")

    def decode_stream(self, *, skip_special_tokens: bool = True) -> TokenDecoder:
        """Returns a decoder that takes one token at a time."""
        return TokenDecoder(self._tokenizer, skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> str:
        """Renders a conversation as a prompt; raises InvalidRequestError without a chat template or if it refuses."""
        own = options.chat_template if options is not None else None
        template = self._chat_template if own is None else self._compiled(own)
        if template is None:
            raise InvalidRequestError("messages", "this model has no chat template; send a completion prompt instead")
        return template.render(messages, options)

    def _compiled(self, source: str) -> ChatTemplate:
        return compiled(source, self.special_tokens, "chat_template")


class TokenDecoder:
    """Returns text as soon as its characters are complete."""

    def __init__(self, tokenizer: FastTokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = self._begun()
        # Tokens whose text was not returned yet.
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Returns the text that this token completes, "" while a character is incomplete."""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception:  # noqa: BLE001 - the library raises nothing more specific
            # Invalid bytes may change the text of the bytes before them, which was already returned.
            self._stream = self._begun()
            text = "".join(self._stream.step(self._tokenizer, each) or "" for each in self._pending)
        if text:
            self._pending.clear()
        return text or ""

    def _begun(self) -> DecodeStream:
        return DecodeStream(skip_special_tokens=self._skip_special_tokens)


def _require_library_error(error: BaseException) -> None:
    """Raises any other error again: the library raises plain `Exception`, and its panics are not Python exceptions."""
    if not isinstance(error, Exception) and type(error).__name__ != PANIC:
        raise error


def _chat_template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """Prefers `chat_template.jinja` to `tokenizer_config.json`; of several named templates, uses "default"."""
    jinja = directory / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{jinja}: cannot be read ({error}); give a complete copy of the model") from None
    found = config.get("chat_template")
    if isinstance(found, list) and all(_is_named_template(entry) for entry in found):
        found = next((entry["template"] for entry in found if entry["name"] == "default"), None)
    if found is not None and not isinstance(found, str):
        path, kind = directory / "tokenizer_config.json", type(found).__name__
        reason = "it must be a text, or a list of objects with the texts name and template"
        raise CheckpointError(f"{path}: chat_template is a damaged {kind}; {reason}")
    return found


def _is_named_template(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("name", "template"))


def _special_tokens(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    texts: dict[str, str] = {}
    for name in names:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        # Empty or null: the model has no such token.
        if not value:
            continue
        if not isinstance(text, str):
            kind = type(text).__name__
            raise CheckpointError(f"{path}: {name} is {kind}; it must be a text, or an object with its content")
        texts[name] = text
    return texts


class TokenEnds:
    """Tracks the text positions where a completion's tokens end."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._ends: list[int] = []

    def extend(self, token_ids: Iterable[int]) -> None:
        """Adds the next tokens."""
        end = self._ends[-1] if self._ends else 0
        for token in token_ids:
            end += len(self._decoder.push(token))
            self._ends.append(end)

    def count_before(self, length: int) -> int:
        """Returns the number of tokens that produced the first `length` characters."""
        return min(bisect_left(self._ends, length) + 1, len(self._ends)) if length else 0


REASON = "this server has no tokenizer (--skip-tokenizer-init)"


def id_as_text(token_id: int) -> str:
    """Returns a token's id in the form that vLLM shows in place of its text."""
    return f"token_id:{token_id}"


class NoTokenizer(Tokenizer):
    """A tokenizer without text; `InputProcessor` refuses fields that need text, naming the field."""

    handles_text = False

    def __init__(self) -> None:
        self.chat_template_source = None
        self.special_tokens = {}
        self.longest_token = 0
        self.token_bytes = _no_bytes

    @override
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidRequestError."""
        raise InvalidRequestError(None, f"{REASON}; send token ids")

    @override
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns an empty text."""
        return ""

    @override
    def token_text(self, token_id: int) -> str:
        """Returns the id as text, so that entries of log probabilities are distinct."""
        return id_as_text(token_id)

    @override
    def decode_stream(self, *, skip_special_tokens: bool = True) -> TokenDecoder:
        """Returns a decoder without text."""
        return _NoDecoder()

    @override
    def render_chat(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> str:
        """Raises InvalidRequestError."""
        raise InvalidRequestError("messages", f"{REASON}; send a completion with prompt token ids")


class _NoDecoder(TokenDecoder):
    def __init__(self) -> None:
        pass

    @override
    def push(self, token_id: int) -> str:
        return ""


def _no_bytes(_: int) -> bytes:
    return b""


class PromptText:
    """Tokenizes texts for a context of `max_model_len` tokens; refuses texts that cannot fit as early as possible.

    most_whole: characters of a text that may have more tokens than the context, which is tokenized as a whole.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._most_characters = max_model_len * tokenizer.longest_token * NORMALIZATION
        self._piece = max(QUICK_TEXT, CHARACTERS_A_TOKEN * max_model_len)
        self.most_whole = max(MAX_TOKENIZED_CHARACTERS, CHARACTERS_A_TOKEN * max_model_len)

    def tokens(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Returns token ids; raises InvalidRequestError naming `param`, also for most texts that are too long."""
        if len(text) > max(self._most_characters, QUICK_TEXT):
            raise InvalidRequestError(
                param,
                f"the prompt has {len(text)} characters; the context of {self._max_model_len} tokens holds "
                f"at most {self._most_characters}",
                TOO_LONG,
            )
        require_unicode(text, param)
        if len(text) > self._piece:
            self._require_few_tokens(text, param)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def whole(self, text: str, param: str, *, add_special_tokens: bool, cut: Cut | None = None) -> list[int]:
        """Returns token ids, cut if asked for, of a text that may be longer than the context; raises the same."""
        if len(text) > self.most_whole:
            reason = f"{len(text)} characters are too many; this server tokenizes {self.most_whole} of a request"
            raise InvalidRequestError(param, reason)
        require_unicode(text, param)
        if cut is None:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return self._tokenizer.encode_cut(text, cut, add_special_tokens=add_special_tokens)

    def _require_few_tokens(self, text: str, param: str) -> None:
        """Counts tokens piece by piece: tokenizing a whole text takes 200 bytes of memory per token."""
        count = 0
        for begin in range(0, len(text), self._piece):
            count += len(self._tokenizer.encode(text[begin : begin + self._piece], add_special_tokens=False))
            count -= TOKENS_AT_A_CUT
            if count > self._max_model_len:
                reason = (
                    f"the first {begin + self._piece} of the prompt's {len(text)} characters have more than "
                    f"{count} tokens; the context holds {self._max_model_len}"
                )
                raise InvalidRequestError(param, reason, TOO_LONG)


def require_unicode(text: str, param: str) -> str:
    """Returns the text; raises InvalidRequestError for half a surrogate pair, which a JSON string can contain."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(param, f"no valid Unicode: {error.reason}") from None
    return text
