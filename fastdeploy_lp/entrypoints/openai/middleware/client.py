"""Middleware that finds the operator's rule and the uploads of a request's client."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.middleware.request_record import STATE_KEY
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore


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
