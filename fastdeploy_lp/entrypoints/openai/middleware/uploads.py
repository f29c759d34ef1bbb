"""Middleware that finds the uploads of a request's client."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.middleware.request_record import STATE_KEY
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore


class UploadsMiddleware:
    """Records the uploads of the client's key; after authentication, which records the key."""

    def __init__(self, app: ASGIApp, store: UploadStore) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sets the SPECs of HTTP requests' uploads."""
        record = scope.get("state", {}).get(STATE_KEY)
        if record is not None:
            record.brought = self._store.specs_of(record.key)
        await self._app(scope, receive, send)
