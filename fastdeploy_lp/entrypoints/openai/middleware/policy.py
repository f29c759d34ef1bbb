"""Middleware that finds the rule of a request's client."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.middleware.request_record import STATE_KEY
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies


class PolicyMiddleware:
    """Records the rule of the current policy; runs after authentication, which records the client's key."""

    def __init__(self, app: ASGIApp, policies: Policies) -> None:
        self._app = app
        self._policies = policies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sets the rule of HTTP requests."""
        record = scope.get("state", {}).get(STATE_KEY)
        if record is not None:
            record.rule = self._policies.current.rule_of(record.key)
        await self._app(scope, receive, send)
