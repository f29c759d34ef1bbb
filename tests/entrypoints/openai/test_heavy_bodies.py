"""Bodies that ask for much work: refused before it, or worked on beside the event loop while somebody waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.chat import SLOW_TEMPLATE
from support.idle_engine import Client, Idle, idle

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.entrypoints.openai.body.shape import LIGHT_BODY
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.limits import (
    MAX_BODY_CONTAINERS,
    MAX_CARRIED_VALUES,
    MAX_DETOKENIZED_TOKENS,
    MAX_TOKENIZED_CHARACTERS,
)

SECONDS = 60.0
TEXT = "fox " * (LIGHT_BODY // 3)
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": TEXT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/embeddings": {"input": TEXT},
    "/pooling": {"input": TEXT},
    "/tokenize": {"prompt": TEXT, "return_token_strs": True},
}
REFUSED: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "bad words of many prompts": (
        *("/v1/completions", {"prompt": ["a"] * 2048, "bad_words": ["word " * 49] * 4096}),
        *("bad_words", MAX_CARRIED_VALUES),
    ),
    "lists of many completions": (
        *("/v1/completions", {"prompt": "a", "n": 128, "bad_words_token_ids": [[1] * 2000] * 491}),
        *("bad_words_token_ids", MAX_CARRIED_VALUES),
    ),
    "biases of many prompts": (
        *("/v1/completions", {"prompt": ["a"] * 2000, "logit_bias": {str(token): 1.0 for token in range(4096)}}),
        *("logit_bias", MAX_CARRIED_VALUES),
    ),
    "arguments of many answers": (
        *("/v1/chat/completions", {**ROUTES["/v1/chat/completions"], "n": 31, "vllm_xargs": {"a": [[1]] * 16_384}}),
        *("vllm_xargs", MAX_CARRIED_VALUES),
    ),
    "a long text to tokenize": (
        *("/tokenize", {"prompt": "a " * MAX_TOKENIZED_CHARACTERS, "return_token_strs": True}),
        *("prompt", MAX_TOKENIZED_CHARACTERS),
    ),
    "many tokens to detokenize": (
        *("/detokenize", {"tokens": [65] * (MAX_DETOKENIZED_TOKENS + 1)}),
        *("tokens", MAX_DETOKENIZED_TOKENS),
    ),
}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS))


async def until(event: asyncio.Future[Any] | Any) -> None:
    """Wait for an event of threads without a thread of the loop's own."""
    while not event.is_set():
        await asyncio.sleep(0)


async def serves(running: Idle) -> None:
    status, _ = await Client(running.app, "/ping", b"").answer()
    assert status == 200


@pytest.mark.parametrize("path", ROUTES)
def test_others_are_served_while_a_large_body_is_tokenized(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with idle(tmp_path) as running:
            running.tokenizer.hold()
            client = Client(running.app, path, json.dumps(ROUTES[path]).encode())
            await until(running.tokenizer.entered)
            await serves(running)
            assert not client.ended.done()
            running.tokenizer.released.set()
            if path == "/tokenize":
                status, content = await client.answer()
                answer = json.loads(content)
                assert status == 200
                assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
            else:
                while not any(isinstance(each, AddRequest) for each in running.worker.sent):
                    await asyncio.sleep(0)
                client.leave()
                assert (await client.answer())[0] == 499

    run(scenario())


@pytest.mark.parametrize("path", ROUTES)
def test_work_of_clients_who_left_is_not_begun(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with idle(tmp_path) as running:
            running.tokenizer.hold()
            clients = [Client(running.app, path, json.dumps(ROUTES[path]).encode()) for _ in range(12)]
            await until(running.tokenizer.entered)
            for client in clients:
                client.leave()
            assert {(await client.answer())[0] for client in clients} == {499}
            running.tokenizer.released.set()
            await running.engine.host.run(lambda: None)
            # One a thread at most had begun.
            assert len(running.tokenizer.texts) <= 2
            assert not running.worker.sent

    run(scenario())


@pytest.mark.parametrize("name", REFUSED)
def test_too_much_together_is_refused_before_it_is_tokenized(tmp_path: Path, name: str) -> None:
    path, body, param, limit = REFUSED[name]

    async def scenario() -> None:
        async with idle(tmp_path) as running:
            status, content = await Client(running.app, path, json.dumps(body).encode()).answer()
            error = json.loads(content)["error"]
            assert (status, error["param"]) == (400, param)
            assert str(limit) in error["message"]
            assert not running.tokenizer.texts

    run(scenario())


def test_lists_and_objects_of_a_body_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with idle(tmp_path) as running:
            body = b'{"prompt": [' + b",".join([b"[]"] * MAX_BODY_CONTAINERS) + b"]}"
            status, content = await Client(running.app, "/v1/completions", body).answer()
            assert status == 400
            assert str(MAX_BODY_CONTAINERS) in json.loads(content)["error"]["message"]

    run(scenario())


def test_a_text_that_does_not_fit_is_refused_at_its_first_piece(tmp_path: Path) -> None:
    """Dense text within the bound on characters: its tokens are counted piece by piece."""

    async def scenario() -> None:
        async with idle(tmp_path) as running:
            text = "\u20ac" * 90_000
            status, content = await Client(
                running.app, "/v1/completions", json.dumps({"prompt": text}).encode()
            ).answer()
            assert status == 400
            assert json.loads(content)["error"]["code"] == "context_length_exceeded"
            assert sum(map(len, running.tokenizer.texts)) < len(text)

    run(scenario())


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/tokenize"])
def test_a_full_server_refuses_before_it_looks_at_a_body(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with idle(tmp_path, SchedulerConfig(1, 64, max_waiting_requests=0)) as running:
            first = Client(running.app, "/v1/completions", b'{"prompt": "a"}')
            while not running.worker.sent:
                await asyncio.sleep(0)
            running.tokenizer.texts.clear()
            for body in (json.dumps(ROUTES[path]).encode(), b"no JSON " * LIGHT_BODY):
                status, _ = await Client(running.app, path, body).answer()
                assert status == 429
            assert not running.tokenizer.texts
            first.leave()
            await first.answer()

    run(scenario())


def test_a_request_of_many_prompts_is_sent_piece_by_piece(tmp_path: Path) -> None:
    """All of them, though the loop serves others in between."""

    async def scenario() -> None:
        async with idle(tmp_path) as running:
            client = Client(running.app, "/v1/completions", json.dumps({"prompt": ["a"] * 64, "n": 64}).encode())
            while not running.worker.sent:
                await asyncio.sleep(0)
            await serves(running)
            assert 0 < len(running.worker.sent) < 64 * 64
            while len(running.worker.sent) < 64 * 64:
                await asyncio.sleep(0)
            client.leave()
            assert (await client.answer())[0] == 499
            assert running.engine.num_in_flight == 0

    run(scenario())


def test_what_depends_on_the_body_alone_is_done_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with idle(tmp_path) as running:
            body = {"prompt": ["fox"] * 40, "n": 3, "bad_words": ["lazy dog"], "allowed_token_ids": [5, 6, 7]}
            client = Client(running.app, "/v1/completions", json.dumps(body).encode())
            while len(running.worker.sent) < 40 * 3:
                await asyncio.sleep(0)
            assert [text for text in running.tokenizer.texts if text != "fox"] == ["lazy dog", " lazy dog"]
            params = [each.params for each in running.worker.sent if isinstance(each, AddRequest)]
            assert len({id(each.bad_words_token_ids) for each in params}) == 1
            assert len({each.seed for each in params}) == 40 * 3
            client.leave()
            await client.answer()

    run(scenario())


def templated(template: str, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "a"}], "chat_template": template, **fields}).encode()


@pytest.mark.parametrize("leaves", [True, False])
def test_templates_that_nobody_waits_for_leave_the_queue(tmp_path: Path, leaves: bool) -> None:
    """Thirty that would take three seconds of a processor each: their clients leave, or their time is over."""

    async def scenario() -> None:
        async with idle(tmp_path) as running:
            templates, path = running.engine.request_templates, "/v1/chat/completions"
            fields = {} if leaves else {"timeout": 0.3}
            clients = [Client(running.app, path, templated(SLOW_TEMPLATE, **fields)) for _ in range(30)]
            if leaves:
                while templates.num_waiting < 28:
                    await asyncio.sleep(0)
                for client in clients:
                    client.leave()
            assert {(await client.answer())[0] for client in clients} == {499 if leaves else 408}
            assert templates.num_waiting == 0
            # Has its turn at once, and its time has just begun.
            later = Client(running.app, path, templated("{{ messages[0].content }}"))
            while not running.worker.sent:
                assert not later.ended.done()
                await asyncio.sleep(0.01)
            later.leave()
            await later.answer()

    run(scenario())
