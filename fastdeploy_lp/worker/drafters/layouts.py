"""The layout of clients' guided answers: which marks and white space came after which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from fastdeploy_lp.worker.logits_mask import Likely

# Layout is tokens of these characters alone.
CHARACTERS = frozenset(b' \t\r\n{}[]:,"')
# In place of every other token.
OTHER = -1
MOST_CLIENTS, MOST_PLACES, MOST_NEXT = 1024, 512, 4
# Bytes that a mark may have to begin with: a quote, with a colon or a comma.
MOST_BYTES = 3


class Marks:
    """The tokens of marks and white space alone. token_bytes: returns the bytes of a token."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._texts: dict[int, bytes] = {}

    def text(self, token: int) -> bytes:
        """Returns a mark's bytes; none of another token."""
        text = self._texts.get(token)
        if text is None:
            found = self._token_bytes(token)
            text = self._texts[token] = found if CHARACTERS.issuperset(found) else b""
        return text

    def code(self, token: int) -> int:
        """Returns the token if it is a mark, else `OTHER`."""
        return token if self.text(token) else OTHER


class Layout:
    """Marks that came after the last two tokens of one client's texts, or began with certain bytes, newest first.

    It knows no other token than marks, of which it keeps `MOST_NEXT` for each of `MOST_PLACES` places. Other threads
    may read while one learns.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._next: dict[tuple[int, int] | bytes, tuple[int, ...]] = {}

    def learn(self, text: Sequence[int], begin: int) -> None:
        """Learns from the tokens of a text from the index `begin` on."""
        code, marks = self._marks.code, self._marks
        for place in range(begin, len(text)):
            token, last = code(text[place]), code(text[place - 1]) if place else OTHER
            if last != OTHER:
                self._note((code(text[place - 2]) if place > 1 else OTHER, last), token)
            beginning = marks.text(text[place])[:MOST_BYTES]
            for size in range(1, len(beginning) + 1):
                self._note(beginning[:size], token)

    def after(self, text: Sequence[int], rest: bytes) -> tuple[int, ...]:
        """Returns marks that may follow a text's tokens, the likeliest first; if they must begin with bytes, `rest`."""
        if rest:
            # Tokenizers merge: a quote is mostly in one token with the colon that may follow it.
            return tuple(sorted(self._next.get(rest, ()), key=lambda token: -len(self._marks.text(token))))
        last = self._marks.code(text[-1]) if text else OTHER
        if last == OTHER:
            return ()
        found = self._next.get((self._marks.code(text[-2]) if len(text) > 1 else OTHER, last), ())
        return tuple(takewhile(OTHER.__ne__, found))

    def following(self, before: Sequence[int]) -> Likely:
        """Returns what may follow a text that ends with these tokens and a draft's."""
        return lambda draft, rest: self.after([*before, *draft[-2:]], rest)

    def run(self, text: Sequence[int], most: int) -> list[int]:
        """Returns at most `most` marks that are likely to follow a text."""
        found: list[int] = []
        while len(found) < most and (following := self.after([*text, *found], b"")):
            found.append(following[0])
        return found

    def _note(self, place: tuple[int, int] | bytes, token: int) -> None:
        known = self._next.get(place, ())
        if known[:1] == (token,):
            return
        if not known and len(self._next) >= MOST_PLACES:
            del self._next[next(iter(self._next))]
        self._next[place] = (token, *(each for each in known if each != token))[:MOST_NEXT]


class Layouts:
    """The layouts of the latest clients."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._marks = Marks(token_bytes)
        # The client that was asked for last is the last one.
        self._of: dict[str, Layout] = {}

    def of(self, client: str) -> Layout:
        """Returns a client's layout; without anything learned if the client is new."""
        layout = self._of.pop(client, None)
        layout = self._of[client] = Layout(self._marks) if layout is None else layout
        if len(self._of) > MOST_CLIENTS:
            del self._of[next(iter(self._of))]
        return layout
