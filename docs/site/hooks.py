"""MkDocs hooks: the README is the first page, linked files are included, nothing is loaded from other hosts."""

from __future__ import annotations

import logging
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import files_beside_docs, outside_resources, page_of, with_site_links

ROOT = Path(__file__).parents[2]
# Below this name a warning counts for --strict.
_log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README and every file outside of docs/ that a page links to."""
    for path in files_beside_docs(ROOT):
        files.append(File.generated(config, page_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs' names
    """Converts links of the repository into links of the site."""
    return with_site_links(markdown, page.file.src_uri, ROOT)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - MkDocs' names
    """Logs a warning for each resource on another host; with --strict the build fails."""
    for address in outside_resources(output):
        _log.warning("%s loads %s", page.file.src_uri, address)
    return output
