"""The tokenizer replacement of a server that handles token ids only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.tokenizer import TokenDecoder, Tokenizer

REASON = "this server has no tokenizer (--skip-tokenizer-init)"


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
        return f"token_id:{token_id}"

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
