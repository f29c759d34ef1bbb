from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.tiny import write_tiny_checkpoint

from benchmarks.thinking_forms import SCHEMAS, WritesFirst, arguments, requests, run, spelled, verdict
from fastdeploy_lp import LLM
from fastdeploy_lp.model_tokenizer import model_tokenizer


@pytest.mark.parametrize(
    ("text", "reason", "end"),
    [
        ('<think>no</think>{"a": 22}', "stop", "valid"),
        ('{"a": 22}', "stop", "valid"),
        ('<think>no</think>{"a": 2}', "stop", "invalid"),
        ('<think>no</think>Sure! {"a": 22}', "stop", "invalid"),
        ('<think>{"a": 22}', "stop", "invalid"),
        ("<think>no", "length", "cut"),
    ],
)
def test_an_invalid_answer_is_told_from_a_valid_one(text: str, reason: str, end: str) -> None:
    assert verdict(SimpleNamespace(text=text, finish_reason=reason), SCHEMAS[0], "qwen3") == end


def test_a_spelled_text_has_many_tokenizations() -> None:
    found = {tuple(spelled(lambda text: [len(text)], "</think>", random.Random(seed))) for seed in range(40)}
    assert {sum(sizes) for sizes in found} == {8}
    assert len(found) > 10


def test_the_requests_depend_on_the_seed_alone() -> None:
    first, again = (list(requests(lambda text: [*text.encode()], 20, "qwen3", 3)) for _ in range(2))
    assert first == again
    assert arguments([]).requests == 10_000


def test_no_answer_is_invalid(tmp_path: Path) -> None:
    """A reduced run."""
    model = str(write_tiny_checkpoint(tmp_path, context=512))
    encode = partial(model_tokenizer(model).encode, add_special_tokens=False)
    options = {"reasoning_parser": "qwen3", "max_num_seqs": 16}
    with LLM(model, logits_processors=[WritesFirst], **options) as llm:
        ends = run(llm, encode, 48, "qwen3", 7)
    assert ends["invalid"] == 0
    assert ends["valid"] > 30
    assert isinstance(ends, Counter)
