"""Messages between the API process and the processes that try grammars: msgpack on their standard input and output."""

from __future__ import annotations

import msgspec


class GrammarStart(msgspec.Struct):
    """The model whose vocabulary the trials use, and the size limit of grammars in bytes."""

    directory: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_bytes: int


class GrammarTrial(msgspec.Struct):
    """A grammar to compile in at most `timeout` seconds of CPU time, and then to follow over some tokens."""

    text: str
    timeout: float


class GrammarProgress(msgspec.Struct):
    """The end of a stage: the start, then for each trial the compilation and, if it succeeded, the masks.

    refusal: why the grammar cannot be used, None if the stage succeeded.
    """

    refusal: str | None = None
