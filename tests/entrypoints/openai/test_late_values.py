"""Values of processors' `prepare` over HTTP, whole, streamed and for several completions, and offline."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.chat import chunks, opened_stream
from support.server import ServerProcess

from fastdeploy_lp import LLM, SamplingParams

MESSAGES = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture
def server(authors_server: ServerProcess) -> ServerProcess:
    return authors_server


def body(name: str | None, **args: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 4, "return_token_ids": True}
    return fields | {"ignore_eos": True, "logits_processors": {} if name is None else {name: args}}


def chat(server: ServerProcess, name: str | None, *, timeout: float = 60.0, **args: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(name, **args), timeout=timeout)


def test_the_value_reaches_the_processor_of_every_completion(server: ServerProcess) -> None:
    sent = body("LooksUp", word="word", seconds=0.05) | {"n": 2}
    answered = httpx.post(f"{server.url}/v1/chat/completions", json=sent).json()
    assert [choice["token_ids"] for choice in answered["choices"]] == [[304] * 4] * 2
    with opened_stream(server, sent) as payloads:
        streamed = [choice for part in chunks(payloads) for choice in part["choices"]]
    assert [token for choice in streamed for token in choice.get("token_ids") or []] == [304] * 8


def test_each_prompt_has_its_own_value(server: ServerProcess) -> None:
    sent = {**body("LooksUp", word="abc"), "prompt": ["the dog", "the fox jumps"]}
    del sent["messages"]
    answered = httpx.post(f"{server.url}/v1/completions", json=sent).json()
    assert [choice["token_ids"] for choice in answered["choices"]] == [[303] * 4] * 2


def test_a_late_value_has_a_clear_end(server: ServerProcess) -> None:
    late, failed = chat(server, "LooksUp", how="hangs"), chat(server, "LooksUp", how="raises")
    assert late.status_code == 503
    assert late.json()["error"]["message"] == "logits processor LooksUp: its prepare took longer than 1.5 s"
    assert failed.status_code == 500
    assert "its prepare failed: LookupError: no such word" in failed.json()["error"]["message"]
    blocked = chat(server, "Holds", how="blocks")
    assert blocked.status_code == 500
    assert "blocked its event loop" in blocked.json()["error"]["message"]
    plain = chat(server, None).json()["choices"][0]["token_ids"]
    assert chat(server, "Skips", how="hangs").json()["choices"][0]["token_ids"] == plain
    assert chat(server, "Holds", seconds=1.0).json()["choices"][0]["token_ids"] == [301] * 4


def test_a_client_that_leaves_frees_its_place(server: ServerProcess) -> None:
    """Its value would never come; afterwards nothing waits."""
    with pytest.raises(httpx.ReadTimeout):
        chat(server, "Holds", how="hangs", timeout=1.0)
    sent = body("Holds", how="hangs") | {"timeout": 0.5}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=sent).status_code == 408
    assert chat(server, "LooksUp").json()["choices"][0]["token_ids"] == [301] * 4


def test_offline_requests_have_values_too(authors_llm: LLM) -> None:
    params = [
        SamplingParams(
            temperature=0, max_tokens=3, ignore_eos=True, n=2, logits_processors={"LooksUp": {"word": "w" * size}}
        )
        for size in range(1, 5)
    ]
    outputs = authors_llm.generate(["the dog"] * 4, params, use_tqdm=False)
    for size, output in enumerate(outputs, start=1):
        assert [each.token_ids for each in output.completions] == [[300 + size] * 3] * 2
