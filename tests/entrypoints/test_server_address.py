"""The address of a running server, and the advice where none listens."""

from __future__ import annotations

import pytest
from support.server import free_port

from fastdeploy_lp.entrypoints.server_address import DEFAULT_PORT, EXAMPLE, ServerAddress


@pytest.mark.parametrize(
    "url", ["", "nowhere", "ftp://a/v1", "http://", "http://a:b/v1", "http://a:0/v1", "http://[::1"]
)
def test_url_of_another_form_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError) as refused:
        ServerAddress(url, "base_url")
    assert str(refused.value) == f"base_url: {url!r} is none like {EXAMPLE}"


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        (EXAMPLE, "127.0.0.1", DEFAULT_PORT, "/v1/models"),
        ("https://models.example/llm/v1/", "models.example", 443, "/llm/v1/models"),
        ("http://[::1]", "::1", 80, "/models"),
    ],
)
def test_address_has_host_port_and_paths(url: str, host: str, port: int, path: str) -> None:
    address = ServerAddress(url)
    assert (address.host, address.port, address.path("models")) == (host, port, path)


def test_where_no_server_listens_the_refusal_says_how_to_start_one() -> None:
    port = free_port()
    with pytest.raises(ValueError) as refused:
        ServerAddress(f"http://127.0.0.1:{port}/v1").require_listening()
    assert str(refused.value) == (
        f"url: no server listens at http://127.0.0.1:{port}/v1 (Connection refused); "
        f"start one in another terminal: fastdeploy-lp serve smollm2-135m --port {port}"
    )


def test_another_machines_server_cannot_be_started_here() -> None:
    with pytest.raises(ValueError, match=r"check the address, and that the server listens on more than 127\.0\.0\.1"):
        ServerAddress("http://no.such.host.invalid:1/v1").require_listening()
