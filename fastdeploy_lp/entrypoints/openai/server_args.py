"""Options of the HTTP server."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from fastdeploy_lp.config import ADMIN_API_KEY_VARIABLE, API_KEY_VARIABLE
from fastdeploy_lp.config.log_format import LOG_FORMATS, LOG_LEVELS
from fastdeploy_lp.config.option_values import require_one_of, require_port
from fastdeploy_lp.entrypoints.api_keys import admin_keys_of_environment, keys_of_environment

DEFAULT_MAX_BODY_SIZE = 16 * 1024 * 1024
DEFAULT_STREAM_TIMEOUT = 60.0
DEFAULT_MAX_UNREAD_TOKENS = 4096
DEFAULT_REQUEST_LOG_BYTES = 256 * 1024 * 1024
CERT_REQS = (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


@dataclass
class ServerArgs:
    """Options of the HTTP server; raises ValueError naming an invalid option."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on; 0.0.0.0 for every interface"})
    port: int = field(default=8000, metadata={"help": "port of the API"})
    metrics_port: int | None = field(default=None, metadata={"help": "port of /metrics (default: the API's own port)"})
    timeout_graceful_shutdown: int = field(
        default=30, metadata={"help": "seconds that running requests get to finish after SIGTERM"}
    )
    api_key: list[str] = field(
        default_factory=keys_of_environment,
        repr=False,
        metadata={
            "help": f"clients must send one of these keys (default: those of ${API_KEY_VARIABLE}, separated by commas)",
            "metavar": "KEY",
            "secret": True,
        },
    )
    admin_api_key: list[str] = field(
        default_factory=admin_keys_of_environment,
        repr=False,
        metadata={
            "help": f"operators' keys: abort_all, resets (default: those of ${ADMIN_API_KEY_VARIABLE}, with commas)",
            "metavar": "KEY",
            "secret": True,
        },
    )
    playground: bool = field(
        default=False, metadata={"help": "serve a page at /playground to try processors, and one with metrics"}
    )
    max_body_size: int = field(default=DEFAULT_MAX_BODY_SIZE, metadata={"help": "bytes that a request's body may have"})
    max_bodies_size: int | None = field(
        default=None, metadata={"help": "bytes of bodies that may arrive at once (default: 8 of the largest)"}
    )
    fair_queue: bool = field(
        default=False, metadata={"help": "let API keys take turns when requests wait, by the tokens each was given"}
    )
    stream_timeout: float = field(
        default=DEFAULT_STREAM_TIMEOUT,
        metadata={"help": "seconds that a stream's client may read nothing before its request ends; 0 for no limit"},
    )
    max_unread_tokens: int = field(
        default=DEFAULT_MAX_UNREAD_TOKENS,
        metadata={"help": "tokens that wait for a stream's client to read before its request ends"},
    )
    max_connections: int | None = field(
        default=None,
        metadata={"help": "connections that may stand before idle ones give way (default: as files may be open)"},
    )
    max_connections_per_client: int | None = field(
        default=None,
        metadata={"help": "connections of one address before its idle ones give way (default: half of all)"},
    )
    allow_extra_fields: bool = field(
        default=False, metadata={"help": "ignore unknown fields of bodies, with a warning a name, instead of refusing"}
    )
    root_path: str = field(default="", metadata={"help": "path under which a proxy shows this server"})
    allowed_origins: list[str] = field(
        default_factory=list,
        metadata={
            "help": "origins whose web pages may use this server; * for all (default: none)",
            "metavar": "ORIGIN",
        },
    )
    allowed_methods: list[str] = field(
        default_factory=lambda: ["*"],
        metadata={"help": "methods that those pages may use (default: all)", "metavar": "METHOD"},
    )
    allowed_headers: list[str] = field(
        default_factory=lambda: ["*"],
        metadata={"help": "headers that those pages may send (default: all)", "metavar": "HEADER"},
    )
    allow_credentials: bool = field(default=False, metadata={"help": "let those pages send cookies along"})
    ssl_certfile: str | None = field(default=None, metadata={"help": "certificate chain (PEM): serve HTTPS"})
    ssl_keyfile: str | None = field(default=None, metadata={"help": "its private key (default: in the same file)"})
    ssl_ca_certs: str | None = field(default=None, metadata={"help": "authorities whose client certificates count"})
    ssl_cert_reqs: int = field(
        default=int(ssl.CERT_NONE), metadata={"help": "client certificates: 0 none, 1 optional, 2 required"}
    )
    log_level: str = field(default="info", metadata={"help": "least grave lines of the log", "choices": LOG_LEVELS})
    log_format: str = field(default="text", metadata={"help": "form of the log's lines", "choices": LOG_FORMATS})
    log_prompts: bool = field(default=False, metadata={"help": "write prompts into the log"})
    request_log: str | None = field(
        default=None,
        metadata={"help": "file to record requests in, tokens included, for `fastdeploy-lp replay` (default: none)"},
    )
    request_log_max_bytes: int = field(
        default=DEFAULT_REQUEST_LOG_BYTES,
        metadata={"help": "size at which that file is renamed to FILE.1 and a new one begun"},
    )

    def __post_init__(self) -> None:
        require_port("port", self.port)
        require_port("metrics_port", self.metrics_port)
        if self.timeout_graceful_shutdown < 0:
            raise ValueError("timeout_graceful_shutdown: must be 0 or more seconds")
        if self.max_body_size < 1:
            raise ValueError("max_body_size: must be at least 1 byte")
        if self.max_bodies_size is not None and self.max_bodies_size < self.max_body_size:
            raise ValueError(f"max_bodies_size: must be at least max_body_size, {self.max_body_size} bytes")
        if not 0 <= self.stream_timeout < math.inf:
            raise ValueError(f"stream_timeout: {self.stream_timeout!r} is not allowed; it must be 0 or more seconds")
        if self.max_unread_tokens < 1:
            raise ValueError("max_unread_tokens: must be at least 1")
        for name in ("max_connections", "max_connections_per_client"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1")
        if self.fair_queue and not self.api_key:
            raise ValueError("fair_queue: needs api_key, since it is keys that take turns")
        if self.request_log_max_bytes < 1:
            raise ValueError("request_log_max_bytes: must be at least 1 byte")
        require_one_of("log_level", self.log_level, LOG_LEVELS)
        require_one_of("log_format", self.log_format, LOG_FORMATS)
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ValueError(f"root_path: {self.root_path!r} must begin with a slash and not end with one")
        self._check_keys()
        if self.allow_credentials and (not self.allowed_origins or "*" in self.allowed_origins):
            raise ValueError("allow_credentials: allowed_origins must name the origins that may send them, without *")
        self._check_tls()

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
