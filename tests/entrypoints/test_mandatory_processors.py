"""Over HTTP, in batch files and offline, no request gets a token that a mandatory processor bans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from support.masks import CHAIN, MANDATORY, banned
from support.random_selections import random_selection
from support.server import ServerProcess
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.entrypoints.cli import main

COUNT, SEED = 32, 20261123
VOCAB_SIZE, SECONDS = 512, 600.0
SAMPLING = {"temperature": 1.0, "max_tokens": 4, "ignore_eos": True}
BANNED = frozenset(banned(VOCAB_SIZE).tolist())
OPTIONS = ["--max-num-seqs", "8", "--logits-processors", *CHAIN, "--mandatory", *MANDATORY]

Body = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def masked(model: str) -> Iterator[ServerProcess]:
    with ServerProcess(*OPTIONS, model=model) as running:
        yield running


def bodies(kind: str) -> list[tuple[str, Body]]:
    """URL and body of each request: the same fields as chats and as completions."""
    rng, made = Random(f"{SEED} {kind}"), []
    for index in range(COUNT):
        common = {**SAMPLING, "seed": index, "return_token_ids": True, **random_selection(rng, VOCAB_SIZE)}
        chat = {"messages": [{"role": "user", "content": "Hi"}], **common}
        made.append(("/v1/chat/completions", chat) if index % 2 else ("/v1/completions", {"prompt": "Hi", **common}))
    return made


def check(answers: list[tuple[int, Any]]) -> None:
    """Every answer is without a banned token, or a refusal that names a field of the request."""
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 400}
    assert min(statuses.count(200), statuses.count(400)) > len(statuses) // 6
    for status, answer in answers:
        if status == 200:
            tokens = answer["choices"][0]["token_ids"]
            assert len(tokens) == SAMPLING["max_tokens"]
            assert not BANNED.intersection(tokens)
        else:
            assert answer["error"]["param"]


def test_over_http(masked: ServerProcess) -> None:
    with httpx.Client(base_url=masked.url, timeout=SECONDS) as client, ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda request: client.post(request[0], json=request[1]), bodies("http")))
    check([(response.status_code, response.json()) for response in responses])


def test_in_a_batch_file(model: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"custom_id": str(index), "url": url, "body": body} for index, (url, body) in enumerate(bodies("batch"))]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["run-batch", "-i", str(source), "-o", str(target), "--model", model, *OPTIONS]
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code  # noqa: PT017 - the command's status
    answers = [json.loads(line)["response"] for line in target.read_text().splitlines()]
    assert len(answers) == COUNT
    check([(answer["status_code"], answer["body"]) for answer in answers])


def test_offline(model: str) -> None:
    tried: list[SamplingParams] = []
    for _, body in bodies("offline"):
        fields = {name: value for name, value in body.items() if name.startswith("logit")}
        tried.append(SamplingParams(**SAMPLING, extra_args=body.get("vllm_xargs"), **fields))
    refused = 0
    with LLM(model, logits_processors=list(CHAIN), mandatory=list(MANDATORY), max_num_seqs=8) as llm:
        assert [each.name for each in llm.logits_processors if each.mandatory] == list(MANDATORY)
        for params in tried:
            try:
                (output,) = llm.generate([1, 2, 3], params)
            except ValueError as error:
                refused += str(error).startswith(("logit", "extra_args"))
                continue
            assert not BANNED.intersection(output.completions[0].token_ids)
    assert COUNT // 6 < refused < COUNT


def test_the_api_says_which_are_mandatory(masked: ServerProcess) -> None:
    cards = httpx.get(f"{masked.url}/v1/logits_processors").json()["data"]
    assert [card["name"] for card in cards if card["mandatory"]] == list(MANDATORY)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"vllm_xargs": {"also": 1}}, "vllm_xargs.also"),
        ({"vllm_xargs": {"logit_bias": {"042": 1}}}, "vllm_xargs.logit_bias.042"),
        ({"vllm_xargs": {"sequence_bias": [[[9999], 1.0]]}}, "vllm_xargs.sequence_bias.0.0.0"),
        ({"vllm_xargs": {"logit_bias": {}}, "logits_processors": []}, "vllm_xargs"),
        ({"logit_bias": {"042": 1}}, "logit_bias.042"),
        ({"logits_processors": [{"name": "RowMask", "shadow": True}]}, "logits_processors.0.shadow"),
        ({"logits_processors": [{"name": "RowMask"}, {"name": "early"}]}, "logits_processors.1"),
        ({"logits_processors_shadow": ["VllmMask"]}, "logits_processors_shadow.0"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_refusal_names_the_field_that_was_sent(masked: ServerProcess, path: str, fields: Body, param: str) -> None:
    asked: Body = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    response = httpx.post(f"{masked.url}{path}", json={**asked, **SAMPLING, **fields}, timeout=SECONDS)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "Hi", "logit_bias": {"42": 1, "42": 5}}', "logit_bias.42"),
        (b'{"prompt": "Hi", "max_tokens": 1, "max_tokens": 2}', "max_tokens"),
        (b'{"prompt": "Hi", "vllm_xargs": {"a": [{"b": 1, "c": 2, "b": 1}]}}', "vllm_xargs.a.0.b"),
    ],
)
def test_a_key_that_is_written_twice_is_refused(masked: ServerProcess, body: bytes, param: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{masked.url}/v1/completions", content=body, headers=headers, timeout=SECONDS)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert "twice" in response.json()["error"]["message"]
