"""HTTPS, and a log with prompts in it because it was asked for."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from support.server import ServerProcess, wait_until

TLS = Path(__file__).parents[2] / "data" / "tls"
CERTIFICATE, KEY = TLS / "certificate.pem", TLS / "key.pem"
SECONDS = 60.0
KEY_OF_CLIENTS = "key-of-clients"


class TlsServer:
    """The tiny model over HTTPS; clients must show a certificate."""

    def __init__(self, checkpoint: Path) -> None:
        options = ["--ssl-certfile", str(CERTIFICATE), "--ssl-keyfile", str(KEY), "--served-model-name", "tiny"]
        options += ["--ssl-ca-certs", str(CERTIFICATE), "--ssl-cert-reqs", "2", "--log-prompts"]
        self.process = ServerProcess(
            *options,
            model=str(checkpoint),
            own_metrics_port=False,
            env={"FASTDEPLOY_LP_API_KEY": f"another,{KEY_OF_CLIENTS}"},
        )
        self.url = self.process.url.replace("http:", "https:")

    def client(self, *, with_certificate: bool = True) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        if with_certificate:
            context.load_cert_chain(CERTIFICATE, KEY)
        return httpx.Client(base_url=self.url, verify=context)

    def healthy(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/health").status_code == 200
        except httpx.ConnectError:
            return False


@pytest.fixture(scope="module")
def tls_server(tiny_checkpoint: Path) -> Iterator[TlsServer]:
    server = TlsServer(tiny_checkpoint)
    server.process.launch()
    try:
        wait_until(server.healthy, SECONDS, lambda: server.process.log)
        yield server
    finally:
        server.process.close()


def test_the_openai_client_completes_over_https(tls_server: TlsServer) -> None:
    with openai.Client(
        base_url=f"{tls_server.url}/v1", api_key=KEY_OF_CLIENTS, max_retries=0, http_client=tls_server.client()
    ) as client:
        answer = client.completions.create(model="tiny", prompt="prompt to\nbe seen", max_tokens=2)
    assert answer.choices[0].finish_reason
    wait_until(lambda: "finish_reasons" in tls_server.process.log, SECONDS)
    assert r'prompts="prompt to\nbe seen"' in tls_server.process.log


def test_a_client_without_a_certificate_is_refused(tls_server: TlsServer) -> None:
    with tls_server.client(with_certificate=False) as client, pytest.raises(httpx.TransportError):
        client.get("/health")


def test_plain_http_is_refused(tls_server: TlsServer) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{tls_server.process.url}/health")


def test_the_printed_line_says_https_and_keeps_the_key(tls_server: TlsServer) -> None:
    wait_until(lambda: "curl" in tls_server.process.log, SECONDS)
    (line,) = [line for line in tls_server.process.log.splitlines() if line.startswith("curl")]
    assert tls_server.url in line
    assert re.search("Authorization: Bearer KEY'", line)
    assert KEY_OF_CLIENTS not in tls_server.process.log
