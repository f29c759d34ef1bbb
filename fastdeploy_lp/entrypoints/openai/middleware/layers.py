"""Layers of the application in order, with those for clients, bounds on bodies, the prefix of a proxy, and HEAD."""

from __future__ import annotations

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.errors import BodyRoomError, BodyTimeoutError, error_response
from fastdeploy_lp.entrypoints.openai.listener.bounds import BODY_KEY, BodiesInFlight, BodyInFlight
from fastdeploy_lp.entrypoints.openai.middleware.authentication import OPEN_PATHS, AuthenticationMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.request_record import (
    STATE_KEY,
    HttpMetrics,
    RequestLogMiddleware,
    RequestsInFlight,
)
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore
from fastdeploy_lp.entrypoints.playground.routes import PATH as PLAYGROUND
from fastdeploy_lp.entrypoints.playground.routes import ROOT


class ClientMiddleware:
    """Records a client's rule in the current policy and its uploads.

    Runs after authentication, which records the client's key.
    """

    def __init__(self, app: ASGIApp, policies: Policies | None, uploads: UploadStore | None) -> None:
        self._app = app
        self._policies = policies
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sets the rule and the SPECs of the uploads in the records of HTTP requests."""
        record = scope.get("state", {}).get(STATE_KEY)
        if record is not None and self._policies is not None:
            record.rule = self._policies.current.rule_of(record.key)
        if record is not None and self._uploads is not None:
            record.brought = self._uploads.specs_of(record.key)
        await self._app(scope, receive, send)


CONTENT_TOO_LARGE = 413
# More digits than the size of any body, and few enough for `int`.
MAX_DIGITS = 18


class BodyLimitMiddleware:
    """Refuses bodies of more than `max_bytes` with a 413: by their announced size, else once they exceed it.

    A body that a route reads is read as a whole and counted in `bodies`: 503 if it is refused to make room for
    others, 408 if it does not arrive in time.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, bodies: BodiesInFlight) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._bodies = bodies
        self._reason = f"the body is larger than the {max_bytes} bytes that this server takes (max_body_size)"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks HTTP requests; the server reads and drops the rest of a refused body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > MAX_DIGITS or int(announced) > self._max_bytes):
            info = ErrorInfo(message=self._reason, type="invalid_request_error", code="request_too_large")
            await error_response(CONTENT_TOO_LARGE, info)(scope, receive, send)
            return
        if b"transfer-encoding" not in headers and announced.strip(b"0") == b"":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        record = state.get(STATE_KEY)
        body = state[BODY_KEY] = self._bodies.begin("" if record is None else record.client)
        try:
            await self._app(scope, self._bounded(receive, body), send)
        finally:
            body.release()

    def _bounded(self, receive: Receive, body: BodyInFlight) -> Receive:
        """Returns `receive` with the whole body as its first message."""
        asked = False

        async def receive_bounded() -> Message:
            nonlocal asked
            if asked:
                return await receive()
            asked = True
            return await self._in_time(receive, body)

        return receive_bounded

    async def _in_time(self, receive: Receive, body: BodyInFlight) -> Message:
        body.reading = reading = asyncio.ensure_future(self._whole(receive, body))
        try:
            while not reading.done():
                seconds = body.deadline - time.monotonic()
                if seconds <= 0:
                    raise BodyTimeoutError
                await asyncio.wait({reading}, timeout=seconds)
        finally:
            reading.cancel()
        if body.gave_way:
            raise BodyRoomError
        return reading.result()

    async def _whole(self, receive: Receive, body: BodyInFlight) -> Message:
        pieces: list[bytes] = []
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return message
                pieces.append(message.get("body", b""))
                # Check before counting, so that a body that is too large never displaces another one.
                if body.size + len(pieces[-1]) > self._max_bytes:
                    raise HTTPException(CONTENT_TOO_LARGE, self._reason)
                body.grow(len(pieces[-1]))
                if body.gave_way:
                    return {"type": "http.disconnect"}
                if not message.get("more_body", False):
                    return {"type": "http.request", "body": b"".join(pieces), "more_body": False}
        finally:
            # An exception's frame would keep the pieces while the connection keeps the request.
            pieces.clear()


class RootPathMiddleware:
    """Sets the server's `root_path` for the inner layers; the proxy may or may not strip it from paths."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sets `root_path` in the scope, where frameworks read it."""
        scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


class HeadMiddleware:
    """Handles HEAD as GET, as load balancers and `curl -I` expect; the server sends no body for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards HEAD as GET; outer layers still see HEAD, and the route that answered."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, send)
        finally:
            if "route" in asked:
                scope["route"] = asked["route"]


# Number of bodies of maximum size that may arrive at once, if max_bodies_size is not set.
BODIES = 8


def behind_middleware(
    app: ASGIApp,
    args: ServerArgs,
    in_flight: RequestsInFlight,
    metrics: HttpMetrics,
    policies: Policies | None,
    uploads: UploadStore | None,
) -> ASGIApp:
    """Returns the application wrapped in the layers that the options enable."""
    bodies = BodiesInFlight(args.max_bodies_size or BODIES * args.max_body_size)
    app = BodyLimitMiddleware(HeadMiddleware(app), args.max_body_size, bodies)
    if policies is not None or uploads is not None:
        app = ClientMiddleware(app, policies, uploads)
    if args.api_key or args.admin_api_key:
        # Browsers fetch pages without a key; the playground's API requests carry one.
        open_paths = (*OPEN_PATHS, PLAYGROUND, ROOT) if args.playground else OPEN_PATHS
        app = AuthenticationMiddleware(app, args.api_key, open_paths, args.admin_api_key)
    # Outside of authentication: preflights carry no key, and browsers read refusals only with CORS headers.
    if args.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=args.allowed_origins,
            allow_methods=args.allowed_methods,
            allow_headers=args.allowed_headers,
            allow_credentials=args.allow_credentials,
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    if args.root_path:
        app = RootPathMiddleware(app, args.root_path)
    log_requests = args.log_requests or args.log_prompts
    return RequestLogMiddleware(app, in_flight, metrics, log_requests=log_requests, log_prompts=args.log_prompts)
