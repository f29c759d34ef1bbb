"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat import HELLO, post
from support.errors import check_error
from support.guarded import AUTH
from support.idle_engine import Client, idle
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing


def tokenize(server: ServerProcess, **body: Any) -> httpx.Response:
    headers = {"Content-Type": "application/json", **AUTH}
    return httpx.post(f"{server.url}/tokenize", content=json.dumps(body), headers=headers)


def detokenize(server: ServerProcess, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/detokenize", json=body, headers=AUTH)


@settings(max_examples=50, database=None)
@given(text=st.text())
def test_tokens_read_as_the_text_they_came_from(guarded_server: ServerProcess, text: str) -> None:
    """Its vocabulary has a token for every byte, which the default model's has not."""
    answer = tokenize(guarded_server, prompt=text).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["token_strs"] is None
    assert detokenize(guarded_server, tokens=answer["tokens"]).json() == {"prompt": text}


def test_special_tokens_are_written_out(strict_server: ServerProcess) -> None:
    text = "<|im_start|>user\nHi<|im_end|>"
    answer = tokenize(strict_server, prompt=text, return_token_strs=True).json()
    assert answer["token_strs"] == ["<|im_start|>", "user", "\n", "Hi", "<|im_end|>"]
    assert detokenize(strict_server, tokens=answer["tokens"]).json()["prompt"] == text


def test_a_conversation_has_the_tokens_that_a_completion_counts(strict_server: ServerProcess) -> None:
    usage = post(strict_server, {"messages": HELLO, "max_tokens": 1}).json()["usage"]
    answer = tokenize(strict_server, messages=HELLO).json()
    assert answer["count"] == usage["prompt_tokens"]
    text = detokenize(strict_server, tokens=answer["tokens"]).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\n")


def test_a_conversation_can_do_without_the_beginning_of_an_answer(strict_server: ServerProcess) -> None:
    whole = tokenize(strict_server, messages=HELLO).json()["tokens"]
    without = tokenize(strict_server, messages=HELLO, add_generation_prompt=False).json()["tokens"]
    assert whole[: len(without)] == without
    assert detokenize(strict_server, tokens=whole[len(without) :]).json()["prompt"] == "<|im_start|>assistant\n"


def test_a_prompt_gets_the_tokenizers_special_tokens_and_a_conversation_those_of_its_template(tmp_path: Path) -> None:
    tokenizer_file = write_tiny_checkpoint(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    start = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=start)
    tokenizer.save(str(tokenizer_file))

    async def first_of(app: Any, **body: Any) -> str:
        content = json.dumps({"return_token_strs": True, **body}).encode()
        status, answer = await Client(app, "/tokenize", content).answer()
        assert status == 200
        first: str = json.loads(answer)["token_strs"][0]
        return first

    async def scenario() -> None:
        async with idle(tmp_path) as running:
            assert await first_of(running.app, messages=HELLO) != "<s>"
            for added in (True, False):
                first = await first_of(running.app, messages=HELLO, add_special_tokens=added)
                assert (first == "<s>") is added
            assert await first_of(running.app, prompt="Hi") == "<s>"

    asyncio.run(scenario())


def test_texts_longer_than_the_context_are_counted(strict_server: ServerProcess) -> None:
    answer = tokenize(strict_server, prompt="word " * 1000).json()
    assert answer["count"] >= 1000
    assert answer["max_model_len"] == 160


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "Hi", "messages": HELLO}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "Hi", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "Hi", "more": 1}, "more"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ],
)
def test_what_cannot_be_tokenized_is_named(strict_server: ServerProcess, body: dict[str, Any], param: str) -> None:
    assert check_error(tokenize(strict_server, **body), 400)["param"] == param


@pytest.mark.parametrize(
    ("tokens", "param"), [([1, -1], "tokens.1"), ([99_999], "tokens.0"), ([2**70], "tokens.0"), ("Hi", "tokens")]
)
def test_what_is_no_token_is_named(strict_server: ServerProcess, tokens: Any, param: str) -> None:
    assert check_error(detokenize(strict_server, tokens=tokens), 400)["param"] == param


def test_another_model_is_not_found(strict_server: ServerProcess) -> None:
    assert check_error(tokenize(strict_server, prompt="Hi", model="gpt-4"), 404)["code"] == "model_not_found"
    assert check_error(detokenize(strict_server, tokens=[1], model="gpt-4"), 404)["code"] == "model_not_found"
    assert tokenize(strict_server, prompt="Hi", model="smol").status_code == 200
