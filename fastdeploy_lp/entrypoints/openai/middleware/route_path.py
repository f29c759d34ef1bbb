"""The path that routes are matched against."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope, root_path: str) -> str:
    """The path without `root_path`, which a proxy may have left in front of it."""
    path: str = scope["path"]
    if root_path and path.startswith(f"{root_path}/"):
        return path[len(root_path) :]
    return path
