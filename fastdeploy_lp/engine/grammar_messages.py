"""Messages between the API process and the processes that try grammars: msgpack on their standard input and output."""

from __future__ import annotations

import msgspec


class GrammarStart(msgspec.Struct):
    """The model whose tokens grammars are tried with; `max_bytes` of the largest grammar."""

    directory: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_bytes: int


class GrammarTrial(msgspec.Struct):
    """Compile this grammar in at most `timeout` seconds of processor time, then follow it over some tokens."""

    text: str
    timeout: float


class GrammarProgress(msgspec.Struct):
    """A stage that has ended: the start, then of each trial its compilation and, if that worked, its masks.

    refusal: why the grammar cannot be used, None if the stage went well.
    """

    refusal: str | None = None
