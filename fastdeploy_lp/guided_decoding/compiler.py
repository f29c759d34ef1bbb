"""Grammars compiled with llguidance, matchers over tokens, and probes of their cost; no other file knows the
library's matchers."""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

WORD_BITS = 32
UNSUITABLE = "the model's tokenizer does not suit guided decoding"
"""Beginning of the reason why every grammar is refused, if the library cannot read the tokenizer."""


class GrammarError(ValueError):
    """A grammar that can not be compiled, or not be followed any further; the message is the library's reason."""


class GrammarMatcher:
    """Follows one sequence through its grammar. Not for several threads at a time."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        # The library knows one end of sequence; models have several.
        self._end, self._other_ends = next(iter(eos_token_ids), None), eos_token_ids[1:]

    @property
    def is_complete(self) -> bool:
        """True if nothing can follow."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> GrammarMatcher:
        """Returns a matcher at the same place of the text, which takes other tokens from there."""
        ends = self._other_ends if self._end is None else (self._end, *self._other_ends)
        return type(self)(self._matcher.deep_copy(), ends)

    def consume(self, token_ids: list[int]) -> None:
        """Take tokens, of which none is an end of sequence; raises GrammarError at one that is not allowed."""
        self._matcher.consume_tokens(token_ids)
        self._require_sound()

    def follow(self, token_ids: list[int]) -> int:
        """Takes tokens up to the first one that is not allowed and returns their number; none is an end of sequence.

        Raises GrammarError.
        """
        count: int = self._matcher.try_consume_tokens(token_ids)
        self._require_sound()
        return count

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Set bit t % 32 of bits[t // 32] for each token t that may come next, and clear the others.

        bits: contiguous, [ceil(vocab_size / 32)]. An end of sequence may come where the text may end. The interpreter
        is free for other threads meanwhile. Raises GrammarError.
        """
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._require_sound()
        if self._end is not None and self._other_ends and allows(bits, self._end):
            for token in self._other_ends:
                bits[token // WORD_BITS] |= _bit(token)

    def forced(self) -> list[int]:
        """Returns the tokens of the only text that may follow; none if there is a choice."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def forced_bytes(self) -> bytes:
        """Returns the only text that may follow, also where it is not known in which tokens."""
        text: bytes = self._matcher.compute_ff_bytes()
        return text

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_one_line(self._matcher.get_error()))


class GrammarCompiler:
    """Compiles grammars for one model's tokens and keeps the latest ones; safe for several threads.

    directory: of the model, with `tokenizer.json`. cache_size: grammars that are kept, good and bad ones.
    """

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Sequence[int], cache_size: int) -> None:
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: LLTokenizer | GrammarError | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()

    def prepare(self) -> LLTokenizer:
        """Reads the vocabulary unless already read; this is slow. Raises GrammarError if the library cannot."""
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = self._read()
            if isinstance(self._tokenizer, GrammarError):
                raise GrammarError(*self._tokenizer.args)
            return self._tokenizer

    def _read(self) -> LLTokenizer | GrammarError:
        end = self._eos_token_ids[0] if self._eos_token_ids else None
        text = (self._directory / "tokenizer.json").read_text()
        try:
            return LLTokenizer(text, n_vocab=self._vocab_size, eos_token=end)
        except BaseException as error:
            # A panic of the library is no Exception.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            reason = _one_line(str(error))
            return GrammarError(f"{UNSUITABLE}: {reason}")

    def matcher(self, grammar: str) -> GrammarMatcher:
        """A matcher at the beginning of a text; compiles in this thread. Raises GrammarError."""
        compiled, is_new = self.compiled(grammar)
        if is_new:
            self.compile(grammar, compiled)
        return self.matcher_of(compiled)

    def matcher_of(self, compiled: Future[LLMatcher]) -> GrammarMatcher:
        """A matcher at the beginning of a text, as soon as its grammar is compiled; raises GrammarError."""
        return GrammarMatcher(compiled.result().deep_copy(), self._eos_token_ids)

    def compiled(self, grammar: str) -> tuple[Future[LLMatcher], bool]:
        """The grammar's place among the latest ones; True if it is new and the caller has to compile it."""
        with self._lock:
            is_new = grammar not in self._compiled
            future = self._compiled.setdefault(grammar, Future())
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > self._cache_size:
                self._compiled.popitem(last=False)
        return future, is_new

    def compile(self, grammar: str, compiled: Future[LLMatcher]) -> None:
        """Compiles a grammar and sets the future's result, unless it has failed meanwhile."""
        try:
            # Errors are for the client, who has no use for the parser's inside.
            matcher = LLMatcher(self.prepare(), grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
            if matcher.is_error():
                raise GrammarError(_one_line(matcher.get_error()))
        except BaseException as error:  # noqa: BLE001 - raised in the caller that waits
            with suppress(InvalidStateError):
                compiled.set_exception(error)
        else:
            with suppress(InvalidStateError):
                compiled.set_result(matcher)


def words_for(vocab_size: int) -> int:
    """Returns the number of 32-bit words of a mask."""
    return -(-vocab_size // WORD_BITS)


def allows(bits: NDArray[np.int32], token: int) -> bool:
    """Returns True if a mask allows the token."""
    return bool(bits[token // WORD_BITS] & _bit(token))


def _bit(token: int) -> np.int32:
    return np.uint32(1 << token % WORD_BITS).astype(np.int32)


def _one_line(message: str) -> str:
    return " ".join(message.split())[:1000]


TOKENS = 24
MASK_SECONDS = 0.5
"""Processor time that one mask, or one token's step through the grammar, may take."""

WALK_SECONDS = 1.0
"""Processor time after which a walk ends early."""


def probe(matcher: GrammarMatcher, vocab_size: int, eos_token_ids: Collection[int]) -> None:
    """Compute the first masks of a text of random tokens; the same grammar takes the same walk each time.

    Raises GrammarError for a grammar whose first mask cannot be computed, and for one whose masks take too long. A
    text may lead a usable grammar beyond the library's limits later on; that ends the walk.
    """
    choice = random.Random(0)
    bits = np.zeros(words_for(vocab_size), np.int32)
    ends = np.array(sorted(eos_token_ids), np.int64)
    began = before = time.thread_time()
    for step in range(TOKENS):
        try:
            matcher.fill(bits)
            token = _token(bits, vocab_size, ends, choice)
            if token is None:
                return
            matcher.consume([token])
        except GrammarError:
            if step == 0:
                raise
            return
        now = time.thread_time()
        if now - before > MASK_SECONDS:
            raise GrammarError(too_slow())
        if now - began > WALK_SECONDS or matcher.is_complete:
            return
        before = now


def too_slow() -> str:
    """The reason to refuse a grammar whose masks take too long."""
    return f"the tokens that it allows take more than {MASK_SECONDS:g} seconds to find; make it less ambiguous"


def _token(bits: np.ndarray, vocab_size: int, ends: np.ndarray, choice: random.Random) -> int | None:
    """One of the allowed tokens that does not end the text; None if there is none."""
    allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size])
    allowed = np.setdiff1d(allowed, ends, assume_unique=True)
    return int(allowed[choice.randrange(allowed.size)]) if allowed.size else None
