"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import httpx
import openai
import pytest
from support.errors import check_error
from support.guarded import API_KEYS, AUTH, MODEL_NAME
from support.server import ServerProcess


def test_the_served_model_is_listed_and_found_by_its_id(strict_server: ServerProcess) -> None:
    (listed,) = httpx.get(f"{strict_server.url}/v1/models").json()["data"]
    found = httpx.get(f"{strict_server.url}/v1/models/smol").json()
    assert (listed["id"], listed["object"], listed["max_model_len"]) == ("smol", "model", 160)
    assert found == listed


@pytest.mark.parametrize("name", ["gpt-4", "smol/er", "a/b/c", "smol%20", "%00", "..%2Fsmol", "Smol"])
def test_other_models_are_not_found(strict_server: ServerProcess, name: str) -> None:
    error = check_error(httpx.get(f"{strict_server.url}/v1/models/{name}"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'smol'" in error["message"]


def test_an_id_may_hold_slashes(guarded_server: ServerProcess) -> None:
    with openai.Client(base_url=f"{guarded_server.url}/v1", api_key=API_KEYS[1], max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [MODEL_NAME]
        found = httpx.get(f"{guarded_server.url}/v1/models/{MODEL_NAME}", headers=AUTH)
        assert found.json()["id"] == MODEL_NAME
        assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
