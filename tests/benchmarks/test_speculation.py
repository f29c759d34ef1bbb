"""Tests of the comparison of drafts: llama.cpp's server as an engine, against a stand-in."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from speculation import Pair, compared
from speculation_engines import LlamaEngine
from speculation_tasks import Prompt, Task

from fastdeploy_lp.entrypoints.bench.http_client import HTTPClientError
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.outputs import DraftedTokens

# Of each answer of `stand_in_server.py`.
TOKENS, DRAFTED, ACCEPTED = 7, 4, 3
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
GUIDED = Prompt("Who?", {"guided_decoding": GuidedDecodingParams(json=SCHEMA), "prediction": "Ada"})


@pytest.fixture
def llama(llama_server: Path, tmp_path: Path) -> Iterator[LlamaEngine]:
    """The stand-in with drafts."""
    with LlamaEngine(str(llama_server), tmp_path / "serves.gguf", ["--spec-type", "ngram-simple"]) as engine:
        yield engine


def test_llama_answers_a_batch_without_its_prompt_cache(llama: LlamaEngine, tmp_path: Path) -> None:
    answers = llama.answer([Prompt("Hi"), GUIDED], 9)
    assert answers.contents == ["x" * TOKENS] * 2
    assert answers.num_tokens == 2 * TOKENS
    assert answers.drafted == DraftedTokens(2 * DRAFTED, 2 * ACCEPTED)
    bodies = [json.loads(line) for line in (tmp_path / "bodies.jsonl").read_text().splitlines()]
    by_text = {body["messages"][0]["content"]: body for body in bodies}
    assert all(body["max_tokens"] == 9 and body["cache_prompt"] is False for body in bodies)
    assert "response_format" not in by_text["Hi"]
    assert by_text["Who?"]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert "prediction" not in by_text["Who?"]


def test_llama_takes_schemas_but_no_other_parameter(llama: LlamaEngine) -> None:
    assert llama.takes(GUIDED)
    assert not llama.takes(Prompt("Hi", {"bad_words": ["rock"]}))
    assert not llama.takes(Prompt("Hi", {"guided_decoding": GuidedDecodingParams(regex="a+")}))


def test_a_refused_request_is_an_error(llama_server: Path, tmp_path: Path) -> None:
    with (
        LlamaEngine(str(llama_server), tmp_path / "refuses.gguf", []) as engine,
        pytest.raises(HTTPClientError, match="500"),
    ):
        engine.answer([Prompt("Hi")], 9)


def test_musts_are_about_our_engine_alone(llama: LlamaEngine) -> None:
    task = Task("chat", (Prompt("Hi"), Prompt("Ho")), {2: 1e9})
    args = argparse.Namespace(turns=1, max_tokens=9, processor_time=False)
    theirs = compared(Pair("llama.cpp", llama, llama), task, 2, args)
    ours = compared(Pair("ours", llama, llama), task, 2, args)
    assert (theirs.must, ours.must) == (None, 1e9)
    assert (theirs.reached, ours.reached) == (True, False)
    assert theirs.same
    assert theirs.accepted == round(ACCEPTED / DRAFTED, 2)
