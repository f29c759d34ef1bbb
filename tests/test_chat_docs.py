"""docs/chat-and-completions.md against the code."""

from __future__ import annotations

import dataclasses
import re

import pytest
from support.server import REPOSITORY

from fastdeploy_lp.config import ChatConfig
from fastdeploy_lp.engine.reasoning_parsers import REASONING_PARSERS
from fastdeploy_lp.engine.tool_parsers import TOOL_PARSERS
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest

DOCUMENT = (REPOSITORY / "docs" / "chat-and-completions.md").read_text()
SAMPLING = (REPOSITORY / "docs" / "sampling.md").read_text()


def in_tables(document: str) -> set[str]:
    """The names in the first columns."""
    cells = re.findall(r"^\| (`[^|]*)\|", document, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("body", [ChatCompletionRequest, CompletionRequest])
def test_every_field_of_a_body_is_documented(body: type[ChatCompletionRequest | CompletionRequest]) -> None:
    assert set(body.model_fields) <= in_tables(DOCUMENT) | in_tables(SAMPLING)
    assert set(body.unsupported) <= set(re.findall(r"`(\w+)`", DOCUMENT))


def test_every_documented_field_is_one() -> None:
    bodies = (ChatCompletionRequest, CompletionRequest)
    known = {name for body in bodies for name in (*body.model_fields, *body.unsupported)}
    assert in_tables(DOCUMENT) <= known


def test_every_option_and_parser_is_documented() -> None:
    for field in dataclasses.fields(ChatConfig):
        name = field.name.replace("_", "-")
        assert f"--{name}" in DOCUMENT or f"--no-{name}" in DOCUMENT
    for parser in (*REASONING_PARSERS, *TOOL_PARSERS):
        assert f"`{parser}`" in DOCUMENT
