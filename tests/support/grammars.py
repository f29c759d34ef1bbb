"""What a grammar makes of a text, token by token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler, GrammarError, GrammarMatcher, words_for
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams

TINY_VOCAB, TINY_EOS = 512, 2


class TinyGrammars:
    """Grammars for the tokens of the tiny checkpoint in a folder, of which all bytes are tokens."""

    def __init__(self, directory: Path, *, eos: tuple[int, ...] = (TINY_EOS,), cache_size: int = 8) -> None:
        self.compiler = GrammarCompiler(directory, TINY_VOCAB, eos, cache_size)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def tokens(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, tokens: list[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(tokens))

    def matches(self, grammar: str, text: str) -> bool:
        """Whether the whole of the text is one of the grammar's."""
        matcher = self.compiler.matcher(grammar)
        try:
            matcher.consume(self.tokens(text))
            return matcher.is_complete or TINY_EOS in allowed(matcher)
        except GrammarError:
            return False

    def fits(self, text: str, *, server: str = "bounded", **form: object) -> bool:
        """The same for fields of GuidedDecodingParams; `server`: the server's mode of whitespace."""
        params = GuidedDecodingParams(**form)  # type: ignore[arg-type]
        return self.matches(grammar_of(params, whitespace=server).text, text)


def allowed(matcher: GrammarMatcher, vocab_size: int = TINY_VOCAB) -> set[int]:
    """The tokens that may come next."""
    bits = np.zeros(words_for(vocab_size), np.int32)
    matcher.fill(bits)
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size]).tolist())


def ambiguous(alternatives: int = 450) -> str:
    """A grammar that compiles quickly, and whose masks take seconds, or minutes for a large vocabulary."""
    each = " | ".join(f'e e "a{n}" | e e' for n in range(alternatives))
    return f'start: e\ne: {each} | "x"\n'


def endless(number: int = 0) -> str:
    """A grammar of a few kilobytes that takes the library minutes to compile; each number has its own."""
    parts = " & ".join(f"/.*a.{{{count}}}/" for count in range(1, 60))
    return f"start: A\nA: {parts} & /.*x{number}.*/\n"


def write_unsuitable_tokenizer(directory: Path) -> None:
    """Replaces the tokenizer in a tiny checkpoint's folder by one that the library of grammars cannot read."""
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": None}))
