"""Over HTTP: arguments that can only fail at a processor's call are a 400, and no fault of the processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint
from support.tried import RAISED

# Processors of transformers, whose import takes seconds, are tried in test_admission.py.
CHAIN = ["Plugin=support.tried:PLUGIN", "support.tried:Raises", "support.tried:Adds"]
BAD: list[tuple[str, dict[str, Any]]] = [
    *(("Plugin", {"token_id": 512 + index}) for index in range(6)),
    *(("Adds", {"place": 512 + index}) for index in range(6)),
    *(("Raises", {"kind": kind, "when": when}) for kind in RAISED for when in ("build", "first", "second")),
]
GOOD: list[tuple[str, dict[str, Any]]] = [("Plugin", {"token_id": 7}), ("Adds", {"place": 7})]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    # Beside busy processes, a check at the lowest priority takes long.
    patient = ["--logits-processors-code-timeout", "600"]
    with ServerProcess("--logits-processors", *CHAIN, *patient, model=str(model)) as server:
        yield server


def complete(server: ServerProcess, name: str, params: dict[str, Any]) -> httpx.Response:
    body = {"prompt": "the dog", "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    return httpx.post(f"{server.url}/v1/completions", json={**body, "logits_processors": {name: params}})


def test_arguments_that_cannot_work_are_refused_and_count_for_nothing(served: ServerProcess) -> None:
    for name, params in BAD:
        answer = complete(served, name, params)
        assert answer.status_code == 400, (params, answer.text)
        assert answer.json()["error"]["param"].startswith(f"logits_processors.{name}")
    answers = {name: complete(served, name, params) for name, params in GOOD}
    assert {name: answer.status_code for name, answer in answers.items()} == {name: 200 for name, _ in GOOD}
    for answer in answers.values():
        assert answer.json()["choices"][0]["token_ids"] == [7] * 4
    listed = httpx.get(f"{served.url}/v1/logits_processors").json()["data"]
    assert [each["dialect"] for each in listed] == ["plugin-dict", "callable", "callable"]
    assert {each["counters"]["faults"] for each in listed} == {0}
