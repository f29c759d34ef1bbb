"""The HTTP server's options: what cannot be used is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser

TLS = Path(__file__).parents[2] / "data" / "tls"
CERTIFICATE, KEY = str(TLS / "certificate.pem"), str(TLS / "key.pem")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"api_key": [""]}, ["api_key"]),
        ({"max_body_size": 0}, ["max_body_size", "at least 1 byte"]),
        ({"max_connections": 0}, ["max_connections: 0", "at least 1"]),
        ({"port": 0}, ["port: 0", "1 to 65535"]),
        ({"metrics_port": 65536}, ["metrics_port: 65536", "1 to 65535"]),
        ({"max_unread_tokens": 0}, ["max_unread_tokens: 0", "at least 1"]),
        ({"max_connections_per_client": 0}, ["max_connections_per_client: 0", "at least 1"]),
        ({"request_log_max_bytes": 0}, ["request_log_max_bytes: 0", "at least 1 byte"]),
        ({"timeout_graceful_shutdown": -1}, ["timeout_graceful_shutdown: -1", "at least 0 seconds"]),
        ({"stream_timeout": -1.0}, ["stream_timeout: -1.0", "0 or more seconds"]),
        ({"playground": "no"}, ["playground: 'no'", "true or false"]),
        ({"root_path": "models"}, ["root_path", "'models'"]),
        ({"root_path": "/models/"}, ["root_path"]),
        ({"allow_credentials": True}, ["allow_credentials", "allowed_origins"]),
        ({"allow_credentials": True, "allowed_origins": ["*"]}, ["allow_credentials", "allowed_origins"]),
        ({"ssl_keyfile": KEY}, ["ssl_keyfile", "ssl_certfile"]),
        ({"ssl_ca_certs": CERTIFICATE}, ["ssl_ca_certs", "ssl_certfile"]),
        ({"ssl_certfile": "nowhere.pem"}, ["ssl_certfile", "nowhere.pem"]),
        ({"ssl_certfile": CERTIFICATE, "ssl_keyfile": "nowhere.pem"}, ["ssl_keyfile", "nowhere.pem"]),
        ({"ssl_certfile": CERTIFICATE}, ["ssl_certfile", "cannot be used"]),
        ({"ssl_certfile": CERTIFICATE, "ssl_keyfile": CERTIFICATE}, ["ssl_certfile", "cannot be used"]),
        ({"ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY, "ssl_cert_reqs": 2}, ["ssl_cert_reqs", "ssl_ca_certs"]),
        ({"ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY, "ssl_cert_reqs": 3}, ["ssl_cert_reqs: 3"]),
        (
            {"ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY, "ssl_ca_certs": str(TLS / "README")},
            ["ssl_ca_certs", "README"],
        ),
        ({"log_level": "loud"}, ["log_level", "'loud'", "debug"]),
        ({"log_format": "xml"}, ["log_format", "'xml'", "json"]),
    ],
)
def test_what_cannot_be_used_is_named(options: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        ServerArgs(**options)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_keys_may_be_repeated_or_listed() -> None:
    argv = ["--api-key", "a", "--api-key", "b", "c", "--allowed-origins", "https://x.example"]
    (args,) = OptionsParser(ServerArgs, prog="serve").parse_options(argv)
    assert args.api_key == ["a", "b", "c"]
    assert args == ServerArgs(api_key=["a", "b", "c"], allowed_origins=["https://x.example"])


def test_a_parser_does_not_remember_the_keys_of_the_one_before() -> None:
    OptionsParser(ServerArgs, prog="serve").parse_options(["--api-key", "a"])
    (args,) = OptionsParser(ServerArgs, prog="serve").parse_options([])
    assert args.api_key == []


@pytest.mark.parametrize("name", ["api_key", "admin_api_key"])
def test_neither_an_error_nor_the_representation_shows_a_key(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: its value is not allowed$"):
        ServerArgs(**{name: "sk-secret"})
    assert "sk-secret" not in repr(ServerArgs(**{name: ["sk-secret"]}))
