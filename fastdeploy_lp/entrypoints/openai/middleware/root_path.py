"""Path prefix under which a proxy exposes this server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Sets the server's `root_path` for the inner layers; the proxy may or may not strip it from paths."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sets `root_path` in the scope, where frameworks read it."""
        scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


def route_path(scope: Scope) -> str:
    """Returns the path for route matching, without the root path if it has that prefix."""
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    return path[len(root_path) :] if root_path and path.startswith(f"{root_path}/") else path
