"""API keys: needed everywhere but where load balancers ask, compared whole, and never shown."""

from __future__ import annotations

import httpx
import openai
import pytest
from support.chat import HELLO
from support.errors import check_error
from support.guarded import API_KEYS, MODEL_NAME, ROOT_PATH
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs

CLOSED = [
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/abort_requests"),
    ("POST", "/tokenize"),
    ("GET", "/v1/logits_processors"),
    ("GET", "/load"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
    ("GET", "/healthy"),
    ("GET", f"{ROOT_PATH}/v1/models"),
    ("GET", f"{ROOT_PATH}/health/../v1/models"),
    ("GET", "//health"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_a_key_is_needed(guarded_server: ServerProcess, method: str, path: str) -> None:
    answer = httpx.request(method, f"{guarded_server.url}{path}")
    assert check_error(answer, 401)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/health", "/ping", f"{ROOT_PATH}/health"])
def test_load_balancers_have_no_key(guarded_server: ServerProcess, path: str) -> None:
    assert httpx.get(f"{guarded_server.url}{path}").status_code == 200


@pytest.mark.parametrize("key", API_KEYS)
def test_any_of_the_keys_fits(guarded_server: ServerProcess, key: str) -> None:
    with openai.Client(base_url=f"{guarded_server.url}/v1", api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL_NAME, messages=HELLO, max_tokens=2)  # type: ignore[arg-type]
    assert answer.choices[0].finish_reason


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {API_KEYS[0]}x",
        f"Bearer {API_KEYS[0][:-1]}",
        f"Bearer {','.join(API_KEYS)}",
        f"Basic {API_KEYS[0]}",
        API_KEYS[0],
        "Bearer \xfc",
    ],
)
def test_anything_else_does_not(guarded_server: ServerProcess, header: str) -> None:
    headers = {"Authorization": header.encode("latin-1")}
    check_error(httpx.get(f"{guarded_server.url}/v1/models", headers=headers), 401)


def test_the_schemes_name_has_no_case(guarded_server: ServerProcess) -> None:
    headers = {"Authorization": f"bearer {API_KEYS[0]}"}
    assert httpx.get(f"{guarded_server.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("key", API_KEYS)
def test_a_key_may_come_as_anthropics_clients_send_it(guarded_server: ServerProcess, key: str) -> None:
    for headers in ({"x-api-key": key}, {"X-Api-Key": key, "Authorization": "Bearer wrong"}):
        assert httpx.get(f"{guarded_server.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", "wrong", f"{API_KEYS[0]}x", API_KEYS[0][:-1], f"Bearer {API_KEYS[0]}"])
def test_no_other_key_fits_there(guarded_server: ServerProcess, key: str) -> None:
    check_error(httpx.get(f"{guarded_server.url}/v1/models", headers={"x-api-key": key}), 401)


def test_the_openai_client_sees_its_own_error(guarded_server: ServerProcess) -> None:
    with (
        openai.Client(base_url=f"{guarded_server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_keys_are_not_shown(guarded_server: ServerProcess) -> None:
    """Neither those that fit, nor those of clients, who may have mistaken the server."""
    httpx.get(f"{guarded_server.url}/v1/models", headers={"Authorization": "Bearer secret-of-a-client"})
    assert not [key for key in (*API_KEYS, "secret-of-a-client") if key in guarded_server.log]
    assert API_KEYS[0] not in repr(ServerArgs(api_key=list(API_KEYS)))


def test_keys_of_the_environment_count_unless_options_give_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_API_KEY", " one, two ,,")
    assert ServerArgs().api_key == ["one", "two"]
    assert ServerArgs(api_key=["three"]).api_key == ["three"]
    monkeypatch.delenv("FASTDEPLOY_LP_API_KEY")
    assert ServerArgs().api_key == []


def test_operators_keys_of_the_environment_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_ADMIN_API_KEY", " of-operators, other ")
    args = ServerArgs()
    assert args.admin_api_key == ["of-operators", "other"]
    assert "of-operators" not in repr(args)


def test_without_keys_none_is_needed(strict_server: ServerProcess) -> None:
    assert httpx.get(f"{strict_server.url}/v1/models").status_code == 200
