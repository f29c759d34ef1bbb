"""The bound on the size of request bodies."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.errors import error_response
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo

CONTENT_TOO_LARGE = 413
# More than any body has bytes, and few enough for `int`.
MAX_DIGITS = 18


class BodyLimitMiddleware:
    """Refuses bodies of more than `max_bytes` with a 413: by the size they announce, else as soon as it is passed."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._reason = f"the body is larger than the {max_bytes} bytes that this server takes (max_body_size)"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; what is left of a body that is refused, the server reads and drops."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > MAX_DIGITS or int(announced) > self._max_bytes):
            info = ErrorInfo(message=self._reason, type="invalid_request_error", code="request_too_large")
            await error_response(CONTENT_TOO_LARGE, info)(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive) if b"transfer-encoding" in headers else receive, send)

    def _bounded(self, receive: Receive) -> Receive:
        """For bodies in chunks, which do not announce their size."""
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(CONTENT_TOO_LARGE, self._reason)
            return message

        return receive_bounded
