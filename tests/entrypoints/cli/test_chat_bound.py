"""An answer that does not end is bounded in `chat`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdeploy_lp.entrypoints.chat.session import MAX_PIECES, ChatSession, Message, Settings


class Endless:
    """Says the same word again and again, and counts."""

    said = 0
    closed = False

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        try:
            for _ in range(settings.get("max_tokens", 10 * MAX_PIECES)):
                self.said += 1
                yield "word "
        finally:
            self.closed = True


def chat(settings: Settings) -> tuple[Endless, str, str]:
    backend, out, err = Endless(), io.StringIO(), io.StringIO()
    ChatSession(backend, settings, None, out, err).run(["Hi\n"])
    return backend, out.getvalue(), err.getvalue()


def test_an_answer_without_an_end_is_stopped_with_the_reason_and_the_remedy() -> None:
    backend, out, err = chat(Settings())
    assert (backend.said, backend.closed, err) == (MAX_PIECES, True, "")
    assert out.endswith(f" (stopped after {MAX_PIECES} tokens; /set max_tokens 2000 allows more)\n")


def test_a_limit_of_ones_own_counts_instead() -> None:
    settings = Settings()
    settings.set("max_tokens", str(2 * MAX_PIECES))
    backend, out, _ = chat(settings)
    assert backend.said == 2 * MAX_PIECES
    assert "stopped" not in out
