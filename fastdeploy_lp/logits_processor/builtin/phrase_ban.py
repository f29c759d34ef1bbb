"""Phrases that the output never contains, however it spells them in tokens."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.token_arguments import PHRASES
from fastdeploy_lp.model_tokenizer import TokenizerFilesError

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.row_ops import RowEdits
    from fastdeploy_lp.model_tokenizer import TokenBytes

MAX_PHRASES = 1000
MAX_PHRASE = 128
"""Characters of a phrase."""

MOST_TOKENS = 256
"""Tokens that are taken back at once: a phrase of more tokens is cut off within."""

KEPT_SETS = 64


def _with_tokenizer(phrases: list[str], info: ValidationInfo) -> list[str]:
    if phrases and (info.context or {}).get(PHRASES) is None:
        raise ValueError("there is no tokenizer here, so that the output has no text")
    return phrases


class PhraseBanParams(BaseModel):
    """`banned_phrases`: up to 1,000 texts that the output must not contain, each of up to 128 characters."""

    model_config = ConfigDict(extra="forbid", strict=True)

    banned_phrases: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_PHRASE)]],
            Field(max_length=MAX_PHRASES),
            AfterValidator(_with_tokenizer),
        ]
        | None
    )


class PhraseBanLogitsProcessor(SlotProcessor["OutputText"]):
    """`{"banned_phrases": ["Acme Corp"]}` keeps phrases out of the output's text, in any casing and tokenization.

    When the output completes a phrase, its tokens are taken back from the one in which the phrase begins. That token is
    banned there, and the model continues in its next best way. A phrase is found within words too: write " art" or
    "art " for a word. The text is sent once no phrase can take it back: later, by as many tokens as the longest phrase
    has bytes. As koboldcpp's and ExLlamaV2's banned strings.
    """

    Params = PhraseBanParams
    keeps_rows_valid = True
    max_rewind = MOST_TOKENS

    def __init__(self, fd_config: FDConfig, edits: RowEdits | None = None) -> None:
        super().__init__(fd_config, edits)
        # By whether special tokens have a text; empty without a tokenizer, where requests with phrases are refused.
        self._token_texts = _token_texts(fd_config)
        # Most recently used last; requests of an application have the same phrases.
        self._phrase_sets: OrderedDict[tuple[str, ...], PhraseSet] = OrderedDict()

    @classmethod
    def rewind_for(cls, args: Mapping[str, Any]) -> int:
        """Returns the bytes of the longest phrase, which has no more tokens."""
        return min(
            max((len(folded(each).encode()) for each in args.get("banned_phrases") or ()), default=0), MOST_TOKENS
        )

    def is_argmax_invariant(self) -> bool:
        """Returns True: it changes no logits."""
        return True

    def _build(self, request: SlotRequest) -> OutputText | None:
        phrases = request.args.get("banned_phrases")
        if not phrases:
            return None
        shows_special = not request.params.skip_special_tokens
        return OutputText(request.output, self._phrase_set(tuple(phrases)), self._token_texts[shows_special])

    def _phrase_set(self, phrases: tuple[str, ...]) -> PhraseSet:
        found = self._phrase_sets.pop(phrases, None) or PhraseSet(phrases)
        self._phrase_sets[phrases] = found
        if len(self._phrase_sets) > KEPT_SETS:
            self._phrase_sets.popitem(last=False)
        return found

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        for slot, state in zip(self._slots.slots.tolist(), self._slots.states, strict=True):
            count = state.read()
            if count:
                # Within a phrase of which the client has the beginning, another token keeps it out as well.
                count = min(count, self.actions.rewindable(slot))
                self.actions.rewind(slot, count, [state.output[-count]])

    def _edit(self, logits: Tensor) -> None:
        """Does nothing: it takes tokens back."""


def folded(text: str) -> str:
    """Returns the text without differences of casing; lone surrogates, which no output has, become "?"."""
    return text.encode(errors="replace").decode().casefold()


class PhraseSet:
    """Folded phrases, found by their last characters. `longest`: characters of the longest one."""

    def __init__(self, phrases: Iterable[str]) -> None:
        found = {folded(each) for each in phrases}
        self.longest = max(map(len, found))
        self._by_end: dict[str, tuple[str, ...]] = {}
        for phrase in sorted(found):
            self._by_end[phrase[-2:]] = (*self._by_end.get(phrase[-2:], ()), phrase)
        self._singles = {phrase for phrase in found if len(phrase) == 1}

    def first_start(self, text: str, after: int) -> int | None:
        """Returns where the first phrase begins that ends after the text's first `after` characters; None for none."""
        by_end, starts = self._by_end, []
        for end in range(after + 1, len(text) + 1):
            ending = by_end.get(text[end - 2 : end] if end > 1 else text[:1])
            if ending is not None and text.endswith(ending, 0, end):
                starts += [end - len(each) for each in ending if text.endswith(each, 0, end)]
            if self._singles and text[end - 1] in self._singles:
                starts.append(end - 1)
        return min(starts, default=None)


class TokenTexts:
    """Folded texts of a vocabulary's tokens, read when they are first needed.

    shows_special: special tokens have a text.
    """

    def __init__(self, token_bytes: TokenBytes, *, shows_special: bool) -> None:
        self._token_bytes = token_bytes
        self._hidden = frozenset() if shows_special else token_bytes.special
        self._texts: dict[int, str | bytes] = {}

    def __call__(self, token: int) -> str | bytes:
        """Returns the token's folded text, or its bytes if some of its characters are incomplete."""
        known = self._texts.get(token)
        if known is None:
            known = self._texts[token] = self._read(token)
        return known

    def bytes_of(self, token: int) -> bytes:
        """Returns the token's bytes."""
        return b"" if token in self._hidden else self._token_bytes(token)

    def _read(self, token: int) -> str | bytes:
        content = self.bytes_of(token)
        try:
            return content.decode().casefold()
        except UnicodeDecodeError:
            return content


def _token_texts(fd_config: FDConfig) -> dict[bool, TokenTexts]:
    # The library takes a fraction of a second to read a vocabulary: at the start, not in a step.
    try:
        token_bytes = fd_config.tokenizer.token_bytes
    except TokenizerFilesError:
        return {}
    return {shows: TokenTexts(token_bytes, shows_special=shows) for shows in (False, True)}


_Utf8 = getincrementaldecoder("utf-8")


class OutputText:
    """The end of a request's output as a folded text, read token by token.

    It has at least the characters that the longest phrase has. `output` is the live list of tokens.
    """

    def __init__(self, output: Sequence[int], phrases: PhraseSet, texts: TokenTexts) -> None:
        self.output = output
        self._phrases, self._texts = phrases, texts
        self._text = ""
        # Of each character, the token in which it begins.
        self._owners: list[int] = []
        self._utf8 = _Utf8("replace")
        # The token in which a character begins that is not complete yet.
        self._open: int | None = None
        self._read = max(0, len(output) - MOST_TOKENS)
        # A request that enters with output has only one token that was not searched, or that its phase begins with.
        self._read_up_to(len(output) - 1)

    def read(self) -> int:
        """Reads new tokens; returns the number of last tokens from a phrase's beginning on, 0 without a phrase."""
        before = len(self._text)
        self._read_up_to(len(self.output))
        start = self._phrases.first_start(self._text, before)
        if start is not None:
            return len(self.output) - self._owners[start]
        if len(self._text) > 4 * self._phrases.longest + MAX_PHRASE:
            self._text = self._text[-self._phrases.longest :]
            del self._owners[: -self._phrases.longest]
        return 0

    def _read_up_to(self, end: int) -> None:
        while self._read < end:
            self._append(self.output[self._read])
            self._read += 1

    def _append(self, token: int) -> None:
        text = self._texts(token)
        if self._open is None and isinstance(text, str):
            self._text += text
            self._owners += [self._read] * len(text)
            return
        decoded = self._utf8.decode(self._texts.bytes_of(token))
        for character in decoded:
            owner = self._read if self._open is None else self._open
            self._open = None
            self._text += character.casefold()
            self._owners += [owner] * len(character.casefold())
        pending, _ = self._utf8.getstate()
        if not pending:
            self._open = None
        elif self._open is None:
            self._open = self._read
