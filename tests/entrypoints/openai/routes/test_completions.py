"""What a stream of text completions tells when its end comes early."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest
from fastdeploy_lp.entrypoints.openai.routes.completions import CompletionReader
from fastdeploy_lp.request.outputs import CompletionDelta


@pytest.fixture(scope="module")
def reader(tiny_checkpoint: Path) -> CompletionReader:
    """Of a prompt that is echoed with its log probabilities."""
    tokenizer = Tokenizer(tiny_checkpoint)
    request = CompletionRequest(prompt="ab", echo=True, logprobs=1, stream=True)
    return CompletionReader(tokenizer, request, Prompt(tokenizer.encode("ab"), "ab"), 0)


def test_an_end_does_not_wait_for_what_will_never_come(reader: CompletionReader) -> None:
    """A request that is aborted before its prompt was computed has no log probabilities of it."""
    assert list(reader.chunks(CompletionDelta(0, "", []), None)) == []
    *_, last = reader.chunks(CompletionDelta(0, "", [], finish_reason="abort"), None)
    assert last.finish_reason == "abort"
