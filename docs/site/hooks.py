"""What MkDocs does besides: the README is the first page, linked files come along, nothing is loaded from elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import HOME, file_of, links_of, outside_resources, page_of, with_site_links

ROOT = Path(__file__).parents[2]
# Below this name a warning counts for --strict.
_log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the README and every file outside of docs/ that a page links to, as long as new ones turn up."""
    waiting = [HOME, *(file_of(page.src_uri) for page in files.documentation_pages())]
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(page_of(path)) is None:
            files.append(File.generated(config, page_of(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            links = links_of((ROOT / path).read_text(), page_of(path))
            waiting += [link for link in links if _is_new(link, files)]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs' names
    """Links of the repository become links of the site."""
    return with_site_links(markdown, page.file.src_uri, ROOT)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - MkDocs' names
    """Warn of what a reader's browser would load from another host; with --strict the build fails."""
    for address in outside_resources(output):
        _log.warning("%s loads %s", page.file.src_uri, address)
    return output


def _is_new(path: str, files: Files) -> bool:
    return not path.startswith("docs/") and (ROOT / path).is_file() and files.get_file_from_path(page_of(path)) is None
