"""The policy over HTTP: clients cannot get round forced processors, and do not learn of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import yaml
from support.masks import CHAIN, MANDATORY, banned
from support.random_selections import random_selection
from support.server import ServerProcess, wait_until

SEED, SECONDS = 20261124, 600.0
VOCAB_SIZE, MOST_TOKENS = 512, 4
BANNED = frozenset(banned(VOCAB_SIZE).tolist())
# Not in any body, so that an answer cannot repeat it.
MARKER = 7
SECRET = (*MANDATORY, "early")
ALICE, BOB, CAROL, OPERATOR = "alice-key", "bob-key", "carol-key", "operator-key"

Body = dict[str, Any]


def digest(key: str) -> str:
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def policy() -> Body:
    masks = {"RowMask": {}, "plugin_mask": {"also": MARKER}, "VllmMask": {}}
    bias = [{"LogitBiasLogitsProcessor": {"logit_bias": {str(token): 100.0}}} for token in (11, 13)]
    other = {"name": "other", "share": 0.5, "default": bias[1]}
    return {
        "rules": [
            {
                "name": "masked",
                "keys": [digest(ALICE)],
                "force": masks,
                "forbid": ["early"],
                "max_tokens": MOST_TOKENS,
            },
            {
                "name": "tried",
                "keys": [digest(BOB)],
                "default": bias[0],
                "experiment": {"by": "user", "variants": [other]},
            },
            {"name": "rest", "allow": ["late"]},
        ]
    }


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(yaml.safe_dump(policy()))
    return path


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, policy_file: Path) -> Iterator[ServerProcess]:
    keys = [word for key in (ALICE, BOB, CAROL) for word in ("--api-key", key)]
    options = [*keys, "--admin-api-key", OPERATOR, "--policy", str(policy_file), "--max-num-seqs", "8"]
    options += ["--log-requests", "--logits-processors", *CHAIN]
    with ServerProcess(*options, model=str(tiny_checkpoint), own_metrics_port=False) as made:
        yield made


def client(server: ServerProcess, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=SECONDS, headers={"Authorization": f"Bearer {key}"})


def completion(server: ServerProcess, key: str, **fields: Any) -> httpx.Response:
    body = {"prompt": "Hi", "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    with client(server, key) as sender:
        return sender.post("/v1/completions", json=body)


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["choices"][0]["token_ids"]
    return found


def hostile(rng: Random) -> tuple[str, Body]:
    """URL and body of a request that tries to get round the masks."""
    common: Body = {"ignore_eos": True, "return_token_ids": True, "seed": rng.randrange(99), "temperature": 1.0}
    common |= random_selection(rng, VOCAB_SIZE)
    common["max_tokens"] = rng.choice([None, 1, MOST_TOKENS, MOST_TOKENS, MOST_TOKENS + 1])
    if rng.random() < 0.2:
        common["logits_processors_trace"] = True
    if rng.random() < 0.1:
        common["logits_processors_shadow"] = rng.sample(SECRET, 2)
    if rng.random() < 0.5:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **common}
    return "/v1/completions", {"prompt": "Hi", **common}


def check(sent: Body, response: httpx.Response) -> bool:
    """The answer has no banned token and names no secret; returns True if the request was accepted."""
    said = json.dumps(sent)
    # A client's own words may be repeated.
    assert not [name for name in SECRET if name in response.text and name not in said], (sent, response.text)
    answer = response.json()
    if response.status_code == 400:
        assert answer["error"]["param"]
        return False
    assert response.status_code == 200, response.text
    choice = answer["choices"][0]
    assert 0 < len(choice["token_ids"]) <= MOST_TOKENS
    assert not (BANNED | {MARKER}).intersection(choice["token_ids"]), sent
    stages = [stage["name"] for token in choice.get("logits_processors_trace") or [] for stage in token["stages"]]
    assert not set(SECRET).intersection(stages)
    return True


@pytest.mark.parametrize("count", [80, pytest.param(25_000, marks=pytest.mark.long)])
def test_no_request_gets_round_a_forced_processor(server: ServerProcess, count: int) -> None:
    rng = Random(SEED)
    sent = [hostile(rng) for _ in range(count)]
    with client(server, ALICE) as sender, ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda each: sender.post(each[0], json=each[1]), sent))
    accepted = [check(body, response) for (_, body), response in zip(sent, responses, strict=True)]
    assert count // 8 < sum(accepted) < count - count // 8


@pytest.mark.parametrize("name", ["RowMask", "early"])
def test_a_secret_name_is_refused_as_an_unknown_one(server: ServerProcess, name: str) -> None:
    refused = [completion(server, ALICE, logits_processors={each: {}}).json()["error"] for each in (name, "Nowhere")]
    assert refused[0]["param"] == f"logits_processors.{name}"
    said = [each["message"].replace(word, "") for each, word in zip(refused, (name, "Nowhere"), strict=True)]
    assert said[0] == said[1]


def test_an_argument_of_a_secret_processor_is_unknown(server: ServerProcess) -> None:
    error = completion(server, ALICE, logits_processors_args={"also": 1}).json()["error"]
    assert error["param"] == "logits_processors_args.also"
    assert "no declared logits processor" in error["message"]


def test_lists_leave_out_secret_processors(server: ServerProcess) -> None:
    names = {}
    for key in (ALICE, CAROL, OPERATOR):
        with client(server, key) as sender:
            names[key] = [card["name"] for card in sender.get("/v1/logits_processors").json()["data"]]
            schema = sender.get("/openapi.json").text
        assert "plugin_mask" not in schema
    everything = [spec.partition("=")[0].rpartition(":")[2] for spec in CHAIN]
    assert names[OPERATOR] == everything
    assert names[ALICE] == [name for name in everything if name not in SECRET]
    assert names[CAROL] == ["late"]


def test_metrics_beside_a_policy_are_for_operators(server: ServerProcess) -> None:
    statuses = []
    for key in (ALICE, OPERATOR):
        with client(server, key) as sender:
            statuses.append(sender.get("/metrics").status_code)
    assert statuses == [403, 200]


def test_a_client_has_at_most_its_tokens(server: ServerProcess) -> None:
    refused = completion(server, ALICE, max_tokens=MOST_TOKENS + 1)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    assert len(tokens(completion(server, ALICE))) == MOST_TOKENS
    assert len(tokens(completion(server, CAROL, max_tokens=MOST_TOKENS + 1))) == MOST_TOKENS + 1


@pytest.mark.parametrize("user", [f"user {number}" for number in range(6)])
def test_a_default_runs_until_the_request_says_otherwise(server: ServerProcess, user: str) -> None:
    given = tokens(completion(server, BOB, max_tokens=2, user=user))
    assert given in ([11, 11], [13, 13])
    assert tokens(completion(server, BOB, max_tokens=2, user=user)) == given
    assert tokens(completion(server, BOB, max_tokens=2, user=user, logit_bias={"17": 100})) == [17, 17]
    plain = tokens(completion(server, BOB, max_tokens=2, user=user, logits_processors={}))
    assert not {11, 13}.issuperset(plain)


def test_variants_are_counted(server: ServerProcess) -> None:
    for number in range(6):
        completion(server, BOB, max_tokens=1, user=f"user {number}")
    with client(server, OPERATOR) as operator:
        metrics = operator.get("/metrics").text
    counted = [line for line in metrics.splitlines() if "policy_requests_total{" in line]
    assert any('rule="tried",variant="control"' in line for line in counted)
    assert any('rule="tried",variant="other"' in line for line in counted)
    assert "tried/" in server.log


def test_sighup_reads_the_file_again(server: ServerProcess, policy_file: Path) -> None:
    before = policy_file.read_text()
    changed = policy()
    changed["rules"][2] = {"name": "rest", "max_tokens": 1}
    try:
        policy_file.write_text(yaml.safe_dump(changed))
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: len(tokens(completion(server, CAROL))) == 1, SECONDS, lambda: server.log)
        policy_file.write_text("rules: 5")
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "the policy stays as it was" in server.log, SECONDS, lambda: server.log)
        assert len(tokens(completion(server, CAROL))) == 1
    finally:
        policy_file.write_text(before)
