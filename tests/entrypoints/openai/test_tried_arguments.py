"""Over HTTP: arguments that can only fail at a processor's call are a 400, and no fault of the processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint
from support.tried import RAISED

LIBRARY = "transformers.generation.logits_process"
CHAIN = [
    "Plugin=support.tried:PLUGIN",
    "support.tried:Raises",
    f"MinLength={LIBRARY}:MinLengthLogitsProcessor",
    f"Bias={LIBRARY}:SequenceBiasLogitsProcessor",
    "Phrase=logits_processor_zoo.vllm:PreventHallucinationLogitsProcessor",
]
BAD: list[tuple[str, dict[str, Any]]] = [
    *(("Plugin", {"token_id": 512 + index}) for index in range(6)),
    *(("Bias", {"sequence_bias": [[[512 + index], 1.0]]}) for index in range(6)),
    *(("Raises", {"kind": kind, "when": when}) for kind in RAISED for when in ("build", "first", "second")),
    ("MinLength", {"min_length": 5, "eos_token_id": 512}),
    ("Phrase", {"tokenizer": "somebody/elses"}),
]
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("Plugin", {"token_id": 7}),
    ("Bias", {"sequence_bias": [[[7], 1000.0]]}),
    ("MinLength", {"min_length": 5, "eos_token_id": 2}),
    ("Phrase", {"minp": 0.9, "tolerate": 0, "phrase": "the fox"}),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with ServerProcess("--logits-processors", *CHAIN, model=str(model)) as server:
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
    for name in ("Plugin", "Bias"):
        assert answers[name].json()["choices"][0]["token_ids"] == [7] * 4
    assert answers["Phrase"].json()["choices"][0]["text"].startswith("the fox")
    listed = httpx.get(f"{served.url}/v1/logits_processors").json()["data"]
    assert [each["dialect"] for each in listed] == ["plugin-dict", "callable", "torch", "torch", "callable"]
    assert {each["counters"]["faults"] for each in listed} == {0}
