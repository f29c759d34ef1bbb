"""Site paths of the repository's files, and resources that a built page would load from other hosts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

HOME = "README.md"
# The site's folder for linked files outside docs/.
SOURCE = "source"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=(?:#[^)\s]*)?\))")
_OUTSIDE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
# Attributes that make a browser load a resource, by tag; without links that a reader follows.
_LOADING = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}


def page_of(path: str) -> str:
    """The site's source path of the repository's file at `path`."""
    if path == HOME:
        return "index.md"
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"{SOURCE}/{path}"


def file_of(page: str) -> str:
    """The repository's path of the site's source `page`: the inverse of `page_of`."""
    if page == "index.md":
        return HOME
    outside = page.removeprefix(f"{SOURCE}/")
    return outside if outside != page else f"docs/{page}"


def links_of(markdown: str, page: str) -> Iterator[str]:
    """Repository paths of the files that a page links to by relative links."""
    for found in _LINK.finditer(markdown):
        yield _resolve(found.group(), page)


def files_beside_docs(root: Path) -> list[str]:
    """Repository paths of the site's files outside docs/: the README, and the files that pages link to."""
    waiting = [HOME, *(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not (root / path).is_file():
            continue
        seen.add(path)
        if path.endswith(".md"):
            waiting += links_of((root / path).read_text(), page_of(path))
    return sorted(path for path in seen if not path.startswith("docs/"))


def with_site_links(markdown: str, page: str, root: Path) -> str:
    """Returns the page's text with each link to a repository file replaced by that file's path in the site."""

    def place(found: re.Match[str]) -> str:
        path = _resolve(found.group(), page)
        if not (root / path).is_file():
            return found.group()
        return posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")

    return _LINK.sub(place, markdown)


def outside_resources(html: str) -> list[str]:
    """Addresses of other hosts that a browser would load with the page."""
    finder = _ResourceFinder()
    finder.feed(html)
    return finder.found


def _resolve(link: str, page: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(file_of(page)), link))


class _ResourceFinder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records the resources that the tag loads."""
        given = dict(attrs)
        if tag == "link" and given.get("rel") == "canonical":
            return
        values = [given.get(name) or "" for name in _LOADING.get(tag, ())]
        self.found += [value for value in values if _OUTSIDE.match(value.strip())]
        self.found += re.findall(r"url\(\s*['\"]?((?:https?:)?//[^'\")]+)", given.get("style") or "")
