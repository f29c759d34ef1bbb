"""Tokenizes prompt text; requires valid Unicode that fits the context."""

from __future__ import annotations

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.tokenizer import Tokenizer

TOO_LONG = "context_length_exceeded"
# Normalization may shorten a text before tokenization, but hardly by this factor.
NORMALIZATION = 4
# Characters. Shorter texts are tokenized quickly and with little memory.
SHORT_TEXT = 65_536
# Upper bound of characters per token in ordinary text.
CHARACTERS_A_TOKEN = 8
# Tokens that a cut may add, from the words at the cut.
TOKENS_AT_A_CUT = 64


class PromptText:
    """Tokenizes texts for a context of `max_model_len` tokens; refuses texts that cannot fit as early as possible."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._most_characters = max_model_len * tokenizer.longest_token * NORMALIZATION
        self._piece = max(SHORT_TEXT, CHARACTERS_A_TOKEN * max_model_len)

    def tokens(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Returns token ids; raises InvalidRequestError naming `param`, also for most texts that are too long."""
        if len(text) > max(self._most_characters, SHORT_TEXT):
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
