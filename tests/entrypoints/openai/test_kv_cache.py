"""The KV cache as clients and operators see it: cached tokens, metrics, events, and blocks that come back."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from support.chat import chunks, encode, metric, opened_stream, post
from support.server import REPOSITORY, ServerProcess, free_port, wait_until

BLOCK_SIZE = 8
BUDGET = 16
CONTEXT = 8192
# Text of this token alone has the same tokens when it is read again.
REREAD = " dog"
PRINTED_PORT = "8183"


@dataclass
class Watched:
    """A server, and the program of docs/engine.md that listens to it."""

    server: ServerProcess
    listener: subprocess.Popen[str]

    def heard(self) -> tuple[int, str, list[Any]]:
        """The next line that the program prints: sequence number, kind of event, fields."""
        if self.listener.stdout is None:
            raise RuntimeError("the program's output is not read")
        number, kind, fields = self.listener.stdout.readline().split(" ", 2)
        return int(number), kind, json.loads(fields.replace("None", "null"))


def printed_program(port: int) -> str:
    document = (REPOSITORY / "docs" / "engine.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    assert PRINTED_PORT in program
    return program.replace(PRINTED_PORT, str(port))


@pytest.fixture(scope="module")
def watched(light_checkpoint: Path) -> Iterator[Watched]:
    port = free_port()
    # Before the server: it connects while the model loads, and hears the first message.
    program = printed_program(port)
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True) as listener:
        try:
            options = ["--block-size", str(BLOCK_SIZE), "--max-num-batched-tokens", str(BUDGET)]
            options += ["--max-model-len", str(CONTEXT), "--logits-processors", "LogitBiasLogitsProcessor"]
            with ServerProcess(*options, "--cache-queue-port", str(port), model=str(light_checkpoint)) as server:
                yield Watched(server, listener)
        finally:
            listener.kill()


@pytest.fixture
def client(watched: Watched) -> Iterator[openai.Client]:
    with openai.Client(base_url=f"{watched.server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as connected:
        yield connected


def test_the_printed_program_hears_what_is_stored_and_nothing_twice(watched: Watched, client: openai.Client) -> None:
    prompt = list(range(100, 120))
    for _ in range(2):
        client.completions.create(model="default", prompt=prompt, max_tokens=1, temperature=0)
    assert watched.heard() == (0, "AllBlocksCleared", [])
    number, kind, fields = watched.heard()
    hashes, parent, tokens, size, *absent = fields
    assert (number, kind, parent, size, absent) == (0, "BlockStored", None, BLOCK_SIZE, [None] * 3)
    assert tokens == prompt[:16]
    assert len(set(hashes)) == 2
    # The second request stored nothing; this one does, behind the first one's blocks.
    client.completions.create(model="default", prompt=[*prompt[:16], *range(8)], max_tokens=1, temperature=0)
    number, kind, fields = watched.heard()
    assert (number, kind, fields[1:4]) == (1, "BlockStored", [hashes[1], list(range(8)), BLOCK_SIZE])


def cached(usage: Any) -> int:
    return usage.prompt_tokens_details.cached_tokens


def test_completions_tell_cached_tokens(client: openai.Client) -> None:
    fields: dict[str, Any] = {"model": "default", "max_tokens": 2, "temperature": 0}
    prompts = [list(range(200, 221)), list(range(300, 333))]
    cold = client.completions.create(prompt=prompts, **fields)
    warm = client.completions.create(prompt=prompts, **fields)
    assert (cached(cold.usage), cached(warm.usage)) == (0, 16 + 32)
    assert [choice.text for choice in cold.choices] == [choice.text for choice in warm.choices]
    *_, last = client.completions.create(prompt=prompts, stream=True, stream_options={"include_usage": True}, **fields)
    assert cached(last.usage) == 16 + 32


def test_a_chats_next_turn_tells_cached_tokens(watched: Watched) -> None:
    server = watched.server
    messages = [{"role": "user", "content": "Count from one to nine, in words, one after the other."}]
    (token,) = encode(REREAD)
    body: dict[str, Any] = {"messages": messages, "max_tokens": 24, "logit_bias": {str(token): 100}}
    first = post(server, body).json()
    details = first["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 0}
    answer = first["choices"][0]["message"]
    body["messages"] = [*messages, answer, {"role": "user", "content": "Now backwards."}]
    with opened_stream(server, {**body, "stream_options": {"include_usage": True}}) as payloads:
        usage = chunks(payloads)[-1]["usage"]
    found = usage["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["total_tokens"] - 2 * BLOCK_SIZE < found <= first["usage"]["total_tokens"]


def test_choices_after_the_first_share_its_prompt(watched: Watched) -> None:
    before = metric(watched.server, "prefix_cache_hits_total"), metric(watched.server, "prefix_cache_queries_total")
    messages = [{"role": "user", "content": "One, two, three: several answers to one question, please."}]
    answer = post(watched.server, {"messages": messages, "n": 4, "max_tokens": 2}).json()
    prompt = answer["usage"]["prompt_tokens"]
    after = metric(watched.server, "prefix_cache_hits_total"), metric(watched.server, "prefix_cache_queries_total")
    own = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert after[1] - before[1] == 4 * prompt
    assert after[0] - before[0] == own + 3 * ((prompt - 1) // BLOCK_SIZE * BLOCK_SIZE)


def test_a_client_that_leaves_in_the_middle_of_its_prompt_frees_its_blocks(watched: Watched) -> None:
    server = watched.server
    content = json.dumps({"prompt": "word " * (CONTEXT - 100), "max_tokens": 1}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\n"

    def used() -> float:
        return metric(server, "kv_cache_blocks_used")

    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: used() > 0, 30)
    wait_until(lambda: metric(server, "num_requests_running") == 0 == used(), 30)
    assert 0 < metric(server, "kv_cache_blocks") == 32 * CONTEXT / BLOCK_SIZE
    assert metric(server, "num_preemptions_total") == 0
