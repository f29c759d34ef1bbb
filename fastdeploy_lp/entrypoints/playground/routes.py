"""Routes for GET /playground, its metrics page, and the files of both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

STATIC = "static"
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Allows only files from this server, and no inline scripts or styles.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


@dataclass(frozen=True)
class StaticFile:
    """One file with its response headers."""

    name: str
    content: bytes

    @cached_property
    def etag(self) -> str:
        """The entity tag, a hash of the content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def headers(self) -> dict[str, str]:
        """Response headers; browsers cache the file and revalidate it each time. All responses add `nosniff`."""
        return {
            "Content-Type": CONTENT_TYPES[self.name.rpartition(".")[2]],
            "Cache-Control": "no-cache",
            "ETag": self.etag,
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    def is_known_by(self, if_none_match: str | None) -> bool:
        """True if a request's If-None-Match header names the file's entity tag."""
        known = [each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")]
        return self.etag in known or "*" in known


def static_files() -> Mapping[str, StaticFile]:
    """Returns all files by name."""
    folder = resources.files(__package__) / STATIC
    entries = sorted((entry for entry in folder.iterdir() if entry.is_file()), key=lambda entry: entry.name)
    return {entry.name: StaticFile(entry.name, entry.read_bytes()) for entry in entries}


PATH = "/playground"
# Leads to the page: the address that people open.
ROOT = "/"
FILES = f"{PATH}/{{name}}"
PAGES = {PATH: "index.html", f"{PATH}/metrics": "metrics.html"}


def playground_routes() -> APIRouter:
    """Returns the routes; they answer during startup and need no key: the pages ask for one and send it to the API."""
    router = APIRouter(include_in_schema=False)
    files = static_files()

    async def page(request: Request) -> Response:
        return _answer(request, files[PAGES[request.scope["route"].path]])

    async def file(request: Request, name: str) -> Response:
        if name not in files or name in PAGES.values():
            raise HTTPException(404)
        return _answer(request, files[name])

    async def to_the_page(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}")

    router.add_api_route(ROOT, to_the_page, methods=["GET", "HEAD"])
    for path in PAGES:
        router.add_api_route(path, page, methods=["GET", "HEAD"])
    router.add_api_route(FILES, file, methods=["GET", "HEAD"])
    return router


def _answer(request: Request, file: StaticFile) -> Response:
    if file.is_known_by(request.headers.get("if-none-match")):
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
