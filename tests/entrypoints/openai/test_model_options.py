"""Several names of a model, its default sampling, and the requests that the start prints."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.startup.engine_args import EngineArgs

NAMES = ["first", "org/second"]
SECONDS = 60.0
PROMPT = {"prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def served(named_server: ServerProcess) -> ServerProcess:
    """A tiny model of two names, greedy unless a request says otherwise."""
    return named_server


def complete(server: ServerProcess, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**PROMPT, **fields}, timeout=SECONDS)


def tokens(server: ServerProcess, **fields: Any) -> list[int]:
    found: list[int] = complete(server, **fields).json()["choices"][0]["token_ids"]
    return found


@pytest.mark.parametrize("name", [*NAMES, "default", None])
def test_every_name_is_accepted_and_the_first_is_reported(served: ServerProcess, name: str | None) -> None:
    answer = complete(served, model=name)
    assert (answer.status_code, answer.json()["model"]) == (200, "first")


def test_all_names_are_listed_and_found(served: ServerProcess) -> None:
    listed = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert [card["id"] for card in listed] == NAMES
    for card in listed:
        assert httpx.get(f"{served.url}/v1/models/{card['id']}").json() == card


def test_another_name_is_refused_with_all_names(served: ServerProcess) -> None:
    message = "the model 'third' does not exist; this server has 'first', 'org/second'"
    for answer in (complete(served, model="third"), httpx.get(f"{served.url}/v1/models/third")):
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)


def test_requests_without_a_temperature_have_the_servers(served: ServerProcess) -> None:
    greedy = tokens(served, temperature=0)
    assert {tuple(tokens(served, seed=seed)) for seed in range(6)} == {tuple(greedy)}
    # Only the fields that a request leaves out.
    assert len({tuple(tokens(served, seed=seed, temperature=1)) for seed in range(6)}) > 1


def test_the_printed_requests_run_and_the_second_changes_the_answer(served: ServerProcess) -> None:
    commands = [shlex.split(line) for line in served.log.splitlines() if line.startswith("curl ")]
    plain, biased = [json.loads(command[command.index("-d") + 1]) for command in commands]
    (banned,) = biased.pop("logits_processors_args")["logit_bias"].items()
    assert plain == biased
    assert banned[1] == -100.0
    for command in commands:
        done = subprocess.run([*command, "--silent"], capture_output=True, text=True, timeout=SECONDS)
        assert json.loads(done.stdout)["choices"][0]["finish_reason"] in ("stop", "length")


def test_the_last_line_of_the_start_says_where_the_server_listens(served: ServerProcess) -> None:
    said = rf"Serving first on {served.url}/v1 \(platform \w+; logits processors: \w+\)\."
    lines = served.log.splitlines()
    (last,) = [place for place, line in enumerate(lines) if re.fullmatch(said, line)]
    # Later ones are about requests.
    assert not [line for line in lines[last + 1 :] if line.startswith(("curl ", "Serving "))]
    assert [line for line in lines[:last] if line.startswith("curl ")]


def test_requests_are_not_in_the_log(served: ServerProcess) -> None:
    assert complete(served).status_code == 200
    assert "fastdeploy_lp.requests" not in served.log


def test_the_default_model_has_its_authors_sampling(tmp_path: Path) -> None:
    def sampling(**options: Any) -> dict[str, float]:
        return EngineArgs(**options).create_fd_config(show_progress=False).model_config.default_sampling

    assert sampling(model="smollm2-135m") == {"temperature": 0.2, "top_p": 0.9}
    assert sampling(model="smollm2-135m", override_generation_config='{"top_k": 3}') == {"top_k": 3}
    assert sampling(model=str(write_tiny_checkpoint(tmp_path))) == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{", "no valid JSON: "),
        ("[]", "must be a JSON object such as "),
        ('{"temprature": 0.2}', "temprature is not allowed; allowed are temperature, top_p, "),
        ('{"temperature": -1}', "temperature: must be from 0 to 100"),
        ('{"top_k": "5"}', "top_k: must be an integer"),
    ],
)
def test_default_sampling_is_checked_at_the_start(given: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        EngineArgs(model="m", override_generation_config=given)
    assert str(refused.value).startswith(f"override_generation_config: {reason}")


@pytest.mark.parametrize("names", [[], [""], ["a", "a"], [5], 5])
def test_names_are_checked_at_the_start(names: Any) -> None:
    with pytest.raises(ValueError, match="served_model_name: must be "):
        EngineArgs(model="m", served_model_name=names)
