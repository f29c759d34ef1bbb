"""Address of a running server's API, and the advice to start a server where none listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit

EXAMPLE = "http://127.0.0.1:8180/v1"
DEFAULT_PORT = 8180
CONNECT_SECONDS = 10.0
STANDARD_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class ServerAddress:
    """The root of an API; raises ValueError, naming the option, for a URL of another form.

    url: such as `http://127.0.0.1:8180/v1`. option: the option that the URL was given with.
    """

    url: str
    option: str = "url"

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in STANDARD_PORTS and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"{self.option}: {self.url!r} is none like {EXAMPLE}")

    @property
    def host(self) -> str:
        """The host without its port."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The TCP port."""
        parts = urlsplit(self.url)
        return parts.port or STANDARD_PORTS[parts.scheme]

    def path(self, route: str) -> str:
        """Returns the path of a route, such as `models`, below the root."""
        return f"{urlsplit(self.url).path.rstrip('/')}/{route}"

    def connection(self) -> HTTPConnection:
        """Returns a connection that is not open yet, which the caller closes."""
        secure = urlsplit(self.url).scheme == "https"
        return (HTTPSConnection if secure else HTTPConnection)(self.host, self.port)

    def require_listening(self) -> None:
        """Raises ValueError, with the command that starts a server, if nothing listens at the address."""
        try:
            socket.create_connection((self.host, self.port), CONNECT_SECONDS).close()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ValueError(f"{self.option}: no server listens at {self.url} ({reason}); {self._advice()}") from None

    def _advice(self) -> str:
        if self.host not in ("127.0.0.1", "localhost", "::1"):
            return "check the address, and that the server listens on more than 127.0.0.1 (--host)"
        port = "" if self.port == DEFAULT_PORT else f" --port {self.port}"
        return f"start one in another terminal: fastdeploy-lp serve smollm2-135m{port}"
