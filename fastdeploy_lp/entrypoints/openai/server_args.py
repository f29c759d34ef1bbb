"""Options of the HTTP server."""

from __future__ import annotations

import importlib.util
import ssl
from dataclasses import dataclass
from pathlib import Path

from fastdeploy_lp.config import ADMIN_API_KEY_VARIABLE, API_KEY_VARIABLE
from fastdeploy_lp.config.log_format import LOG_FORMATS, LOG_LEVELS
from fastdeploy_lp.config.option_values import (
    at_least,
    check_options,
    option,
    require_names,
    require_port,
    require_seconds,
)
from fastdeploy_lp.entrypoints.api_keys import admin_keys_of_environment, keys_of_environment
from fastdeploy_lp.entrypoints.server_address import DEFAULT_PORT

DEFAULT_MAX_BODY_SIZE = 16 * 1024 * 1024
DEFAULT_STREAM_TIMEOUT = 60.0
DEFAULT_MAX_UNREAD_TOKENS = 4096
DEFAULT_REQUEST_LOG_BYTES = 256 * 1024 * 1024
DEFAULT_RESPONSE_STORE_BYTES = 64 * 1024 * 1024
CERT_REQS = (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


@dataclass
class ServerArgs:
    """Options of the HTTP server; raises ValueError naming an invalid option."""

    host: str = option("127.0.0.1", help="address to listen on; 0.0.0.0 for every interface")
    port: int = option(DEFAULT_PORT, help="port of the API", check=require_port)
    metrics_port: int | None = option(None, help="port of /metrics (default: the API's own port)", check=require_port)
    timeout_graceful_shutdown: int = option(
        30, help="seconds that running requests get to finish after SIGTERM", check=at_least(0, " seconds")
    )
    api_key: list[str] = option(
        keys_of_environment,
        help=f"clients must send one of these keys (default: those of ${API_KEY_VARIABLE}, separated by commas)",
        metavar="KEY",
        secret=True,
        check=require_names,
    )
    admin_api_key: list[str] = option(
        admin_keys_of_environment,
        help=f"operators' keys: abort_all, resets (default: those of ${ADMIN_API_KEY_VARIABLE}, with commas)",
        metavar="KEY",
        secret=True,
        check=require_names,
    )
    playground: bool = option(
        False, help="serve a page at /playground to try processors, and one with metrics; / leads there"
    )
    max_body_size: int = option(
        DEFAULT_MAX_BODY_SIZE, help="maximum bytes of a request's body", check=at_least(1, " byte")
    )
    max_bodies_size: int | None = option(
        None, help="bytes of bodies arriving at once, over all connections (default: 8 of the largest)"
    )
    fair_queue: bool = option(False, help="API keys take turns when requests wait, by the tokens served to each")
    stream_timeout: float = option(
        DEFAULT_STREAM_TIMEOUT,
        help="seconds without reading before a stream's request ends; 0 for no limit",
        check=require_seconds,
    )
    max_unread_tokens: int = option(
        DEFAULT_MAX_UNREAD_TOKENS,
        help="unread tokens of a stream's client before its request ends",
        check=at_least(1),
    )
    max_connections: int | None = option(
        None,
        help="connections before idle ones are closed (default: by the limit of open files)",
        check=at_least(1),
    )
    max_connections_per_client: int | None = option(
        None,
        help="connections of one address (IPv6: one /64 network) before its idle ones are closed (default: half, at "
        "most 2048)",
        check=at_least(1),
    )
    allow_extra_fields: bool = option(
        False, help="ignore unknown fields of bodies, with one warning per name, instead of refusing them"
    )
    root_path: str = option("", help="path under which a proxy serves this server, stripped by the proxy or not")
    allowed_origins: list[str] = option(
        [],
        help="origins whose web pages may use this server; * for all (default: none)",
        metavar="ORIGIN",
        check=require_names,
    )
    allowed_methods: list[str] = option(
        ["*"], help="methods that those pages may use (default: all)", metavar="METHOD", check=require_names
    )
    allowed_headers: list[str] = option(
        ["*"], help="headers that those pages may send (default: all)", metavar="HEADER", check=require_names
    )
    allow_credentials: bool = option(False, help="allow those pages to send cookies")
    ssl_certfile: str | None = option(None, help="certificate chain (PEM): serve HTTPS")
    ssl_keyfile: str | None = option(None, help="its private key (default: in the same file)")
    ssl_ca_certs: str | None = option(None, help="trusted authorities of client certificates")
    ssl_cert_reqs: int = option(int(ssl.CERT_NONE), help="client certificates: 0 none, 1 optional, 2 required")
    log_level: str = option("info", help="minimum level of the log's lines", choices=LOG_LEVELS)
    log_format: str = option("text", help="form of the log's lines", choices=LOG_FORMATS)
    log_prompts: bool = option(False, help="log a line for each request, with its prompts")
    request_log: str | None = option(
        None, help="file to record requests in, tokens included, for `fastdeploy-lp replay` (default: none)"
    )
    request_log_max_bytes: int = option(
        DEFAULT_REQUEST_LOG_BYTES,
        help="size at which that file is renamed to FILE.1 and a new one begun",
        check=at_least(1, " byte"),
    )
    vllm_metrics: bool = option(False, help="list metrics in /metrics a second time with vLLM's names and labels")
    response_store: str | None = option(
        None, help="SQLite file that keeps responses for previous_response_id (default: memory)"
    )
    response_store_max_bytes: int = option(
        DEFAULT_RESPONSE_STORE_BYTES,
        help="bytes of responses that are kept; the oldest are dropped",
        check=at_least(1, " byte"),
    )
    policy: str | None = option(
        None, help="YAML file: logits processors that API keys must, may or must not use; SIGHUP reads it again"
    )
    allow_uploads: bool = option(
        False, help="let clients upload logits processors as WebAssembly; with --policy, keys whose rule allows it"
    )
    upload_store: str | None = option(
        None, help="directory that keeps uploads for the next start (default: none, they go with the server)"
    )
    log_requests: bool = option(False, help="log a line for each request (else only at the level debug)")

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_bodies_size is not None and self.max_bodies_size < self.max_body_size:
            raise ValueError(f"max_bodies_size: must be at least max_body_size, {self.max_body_size} bytes")
        if self.fair_queue and not self.api_key:
            raise ValueError("fair_queue: needs api_key, since it is keys that take turns")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ValueError(f"root_path: {self.root_path!r} must begin with a slash and not end with one")
        if self.upload_store is not None and not self.allow_uploads:
            raise ValueError("upload_store: needs allow_uploads")
        self._check_uploads()
        self._check_keys()
        if self.allow_credentials and (not self.allowed_origins or "*" in self.allowed_origins):
            raise ValueError("allow_credentials: allowed_origins must name the origins that may send them, without *")
        self._check_tls()

    def _check_uploads(self) -> None:
        if self.allow_uploads and importlib.util.find_spec("wasmtime") is None:
            raise ValueError("allow_uploads: needs the package wasmtime: pip install 'fastdeploy-lp[wasm]'")

    def _check_keys(self) -> None:
        for name in ("api_key", "admin_api_key"):
            keys = [key.strip() for key in getattr(self, name)]
            if not all(keys):
                raise ValueError(f"{name}: must not be empty")
            setattr(self, name, keys)
        if set(self.api_key) & set(self.admin_api_key):
            raise ValueError("admin_api_key: must differ from every api_key, since clients have those")

    def _check_tls(self) -> None:
        """Checks the TLS options at once, to report errors before the model loads."""
        if self.ssl_cert_reqs not in CERT_REQS:
            raise ValueError(f"ssl_cert_reqs: {self.ssl_cert_reqs} is none of 0, 1, 2")
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"):
                if getattr(self, name):
                    raise ValueError(f"{name}: needs ssl_certfile")
            return
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ValueError("ssl_cert_reqs: needs ssl_ca_certs")
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ValueError(f"{name}: {path} is no file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password makes an encrypted key an error instead of a prompt on the terminal.
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password="")
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"ssl_certfile: certificate and key cannot be used: {error}") from None
        if self.ssl_ca_certs is not None:
            try:
                context.load_verify_locations(self.ssl_ca_certs)
            except (ssl.SSLError, OSError) as error:
                raise ValueError(f"ssl_ca_certs: {self.ssl_ca_certs} cannot be used: {error}") from None
