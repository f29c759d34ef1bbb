"""Operators' keys do what concerns everybody; a client's key concerns its own requests only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.bounded_server import answer
from support.errors import check_error
from support.guarded import AUTH
from support.server import ServerProcess, wait_until
from support.supervised import LONG, supervised_server

from fastdeploy_lp.entrypoints.openai.middleware.authentication import AuthenticationMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.request_record import STATE_KEY, new_record
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs

ONE, OTHER, ADMIN = "key-of-one", "key-of-another", "key-of-an-operator"
RESET = "/v1/logits_processors/LogitBiasLogitsProcessor/reset"
SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two clients and an operator, whose keys come from an option and the environment."""
    (config := Path(tmp_path_factory.mktemp("o")) / "o.yaml").write_text(f"admin-api-key: [{ADMIN}]\n")
    options = ["--api-key", ONE, "--api-key", OTHER, "--config", str(config)]
    options += ["--logits-processors", "LogitBiasLogitsProcessor"]
    with supervised_server(tmp_path_factory.mktemp("s"), *options) as running:
        yield running


def ask(server: ServerProcess, key: str, path: str, body: Any = None, request_id: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} | ({"X-Request-Id": request_id} if request_id else {})
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=SECONDS)


def abort(server: ServerProcess, key: str, **body: Any) -> httpx.Response:
    return ask(server, key, "/v1/abort_requests", body)


def running(server: ServerProcess) -> int:
    load = httpx.get(f"{server.url}/load", headers={"Authorization": f"Bearer {ADMIN}"})
    return int(load.json()["running"])


@pytest.mark.parametrize("key", [ONE, OTHER])
def test_a_client_can_do_nothing_that_concerns_all(server: ServerProcess, key: str) -> None:
    for response, param in ((abort(server, key, abort_all=True), "abort_all"), (ask(server, key, RESET), None)):
        error = check_error(response, 403)
        assert (error["code"], error["param"]) == ("admin_key_needed", param)
        assert "--admin-api-key" in error["message"]


def test_an_operator_can(server: ServerProcess) -> None:
    assert abort(server, ADMIN, abort_all=True).status_code == 200
    assert ask(server, ADMIN, RESET).json()["state"] == "ok"
    assert abort(server, ADMIN, req_ids=["nobody"]).json()["result"]["not_found"] == ["nobody"]


def test_a_client_ends_its_own_requests_only(server: ServerProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        mine, theirs = (
            pool.submit(ask, server, key, "/v1/chat/completions", LONG, f"of-{key}") for key in (ONE, OTHER)
        )
        wait_until(lambda: running(server) == 2, SECONDS)
        named = [f"of-{ONE}", f"of-{OTHER}"]
        # Nothing tells another client's request from none.
        refusals = [check_error(abort(server, ONE, req_ids=[name]), 404) for name in (f"of-{OTHER}", "nobody")]
        assert refusals[0] == refusals[1]
        assert refusals[0]["code"] == "request_not_found"
        result = abort(server, ONE, req_ids=named).json()["result"]
        assert ([each["request_id"] for each in result["aborted"]], result["not_found"]) == ([named[0]], [named[1]])
        assert mine.result(SECONDS).json()["choices"][0]["finish_reason"] == "abort"
        assert not theirs.done()
        assert len(abort(server, ADMIN, req_ids=named).json()["result"]["aborted"]) == 1
        assert theirs.result(SECONDS).json()["choices"][0]["finish_reason"] == "abort"


def test_with_keys_and_none_for_operators_nobody_can(guarded_server: ServerProcess) -> None:
    with httpx.Client(base_url=guarded_server.url, headers=AUTH) as client:
        for response in (client.post("/v1/abort_requests", json={"abort_all": True}), client.post(RESET)):
            assert "--admin-api-key" in check_error(response, 403)["message"]


def test_no_key_is_shown(server: ServerProcess) -> None:
    seen = server.log + Path(f"/proc/{server.worker_pid}/environ").read_text()
    assert not [key for key in (ONE, OTHER, ADMIN) if f"Bearer {key}" in seen or ADMIN in seen]


def test_a_key_has_one_role() -> None:
    with pytest.raises(ValueError, match="admin_api_key: must differ"):
        ServerArgs(api_key=["a", "b"], admin_api_key=["b"])
    with pytest.raises(ValueError, match="admin_api_key: must not be empty"):
        ServerArgs(admin_api_key=[" "])


@pytest.mark.parametrize(("header", "operator"), [(None, False), (b"Bearer other", False), (b"Bearer root", True)])
def test_operators_may_have_keys_where_clients_need_none(header: bytes | None, operator: bool) -> None:
    headers = [] if header is None else [(b"authorization", header)]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/x", "headers": headers, "client": ("a", 1)}
    scope["state"] = {STATE_KEY: (record := new_record(scope))}
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        """Nothing."""

    asyncio.run(AuthenticationMiddleware(app, [], admin_keys=["root"])(scope, receive, send))
    assert sent[0]["status"] == 200
    assert (record.operator, record.client) == (operator, "0" if operator else "a")
