"""Routes for GET /playground, its metrics page, and the files of both."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from fastdeploy_lp.entrypoints.playground.static_file import StaticFile, static_files

PATH = "/playground"
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

    for path in PAGES:
        router.add_api_route(path, page, methods=["GET", "HEAD"])
    router.add_api_route(FILES, file, methods=["GET", "HEAD"])
    return router


def _answer(request: Request, file: StaticFile) -> Response:
    if file.is_known_by(request.headers.get("if-none-match")):
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
