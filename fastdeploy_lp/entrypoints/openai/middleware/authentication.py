"""API keys of clients and of operators."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.errors import error_response
from fastdeploy_lp.entrypoints.openai.middleware.request_record import STATE_KEY, route_path
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo

# Load balancers and orchestrators request these without a key.
OPEN_PATHS = ("/health", "/ping")


class AuthenticationMiddleware:
    """Admits requests with one of the keys as `Authorization: Bearer KEY` or `x-api-key: KEY`, and records the key.

    401 for others.

    keys: of clients; if empty, clients need no key. admin_keys: of operators. open_paths: need no key, including all
    paths below them.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        open_paths: Sequence[str] = OPEN_PATHS,
        admin_keys: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._num_client_keys = len(keys)
        self._digests = [_digest(key.encode()) for key in (*keys, *admin_keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks HTTP requests, except CORS preflights, which never carry a key."""
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        place = self._place_of_key(scope)
        if place is not None or not self._num_client_keys:
            record = scope.get("state", {}).get(STATE_KEY)
            if record is not None:
                record.operator = place is not None and place >= self._num_client_keys
                if place is not None:
                    record.client, record.key = str(place), self._digests[place].hex()
            await self._app(scope, receive, send)
            return
        info = ErrorInfo(
            message="an API key of this server is needed, as the header Authorization: Bearer KEY or x-api-key: KEY",
            type="invalid_request_error",
            code="invalid_api_key",
        )
        await error_response(401, info, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = route_path(scope)
        return any(path == open_path or path.startswith(f"{open_path}/") for open_path in self._open_paths)

    def _place_of_key(self, scope: Scope) -> int | None:
        """Returns the index of the request's key; None if it has none of the keys."""
        scheme, _, key = _header(scope, b"authorization").partition(b" ")
        bearer = _digest(key.strip() if scheme.lower() == b"bearer" else b"")
        own = _digest(_header(scope, b"x-api-key").strip())
        # Always compare all keys: the duration must not reveal a partial match.
        fits = [[hmac.compare_digest(given, digest) for digest in self._digests] for given in (bearer, own)]
        return next((each.index(True) for each in fits if any(each)), None)


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
