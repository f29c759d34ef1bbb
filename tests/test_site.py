"""The documentation's site: every page is in its navigation, links lead somewhere, generated tables are current."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from support.server import REPOSITORY

import fastdeploy_lp
from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.logits_processor import BUILTIN

DOCS = REPOSITORY / "docs"


def load(name: str) -> ModuleType:
    """A module of docs/site, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", DOCS / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, tables = load("pages"), load("write_tables")
BROUGHT_ALONG = [pages.page_of(path) for path in pages.files_beside_docs(REPOSITORY) if path.endswith(".md")]
PAGES = sorted([*(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")), *BROUGHT_ALONG])


def navigation() -> list[str]:
    def leaves(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry if isinstance(entry, list) else entry.values():
                yield from leaves(part)

    return list(leaves(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]))


def prose(page: str) -> str:
    """A page's text without its blocks of code."""
    text = (REPOSITORY / pages.file_of(page)).read_text()
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The ids that the site gives to the page's headings, and those of documented names."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
    return slugs | set(re.findall(r"^::: (\S+)$", prose(page), re.MULTILINE))


def test_the_navigation_has_every_page_once() -> None:
    missing = sorted(set(PAGES) - set(navigation()))
    assert not missing, f"{missing}: name these pages under `nav` in mkdocs.yml"
    assert sorted(navigation()) == PAGES


def test_files_beside_docs_come_along_with_the_pages_that_link_to_them(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("[a](docs/a.md) [gone](nowhere.md) [web](https://example.org/x.md)")
    (tmp_path / "docs" / "a.md").write_text("[b](../more/b.md#top) ![c](c.svg)")
    (tmp_path / "docs" / "c.svg").touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.md").write_text("[d](d.py) [a](../docs/a.md) [home](../README.md)")
    (tmp_path / "more" / "d.py").touch()
    assert pages.files_beside_docs(tmp_path) == ["README.md", "more/b.md", "more/d.py"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        here = pages.file_of(page)
        file = posixpath.normpath(posixpath.join(posixpath.dirname(here), path)) if path else here
        assert (REPOSITORY / file).is_file(), target
        assert not anchor or anchor in anchors(pages.page_of(file)), target


def test_the_readme_links_to_every_page() -> None:
    linked = set(pages.links_of(prose("index.md"), "index.md"))
    indirectly = {"docs/author-kit.md"}
    assert {f"docs/{path.name}" for path in DOCS.glob("*.md")} - linked <= indirectly


@pytest.mark.parametrize("name", tables.PAGES)
def test_generated_tables_are_current(name: str) -> None:
    assert (DOCS / name).read_text() == tables.current_page(name), "run `python docs/site/write_tables.py`"


def test_the_help_page_has_the_options_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    offered = {name for name in re.findall(r"--([a-z][a-z0-9-]+)", usage) if not name.startswith("no-")}
    listed = set(re.findall(r"^\| `--([a-z][a-z0-9-]+)`", prose("options.md"), re.MULTILINE))
    assert listed == offered - {"config"}


def test_there_is_one_row_for_every_builtin_with_a_link_to_its_parameters() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \|", prose("builtin-processors.md"), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(BUILTIN)
    assert all(anchor == name.lower() for name, anchor in rows)


def test_the_api_page_has_every_public_name() -> None:
    documented = re.findall(r"^::: fastdeploy_lp\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(set(fastdeploy_lp.__all__) - {"__version__"})


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("index.md", "docs/server.md#routes", "server.md#routes"),
        ("index.md", "examples/fastapi_app.py", "source/examples/fastapi_app.py"),
        ("offline.md", "../examples/fastapi_app.py", "source/examples/fastapi_app.py"),
        ("offline.md", "server.md", "server.md"),
        ("offline.md", "../README.md", "index.md"),
        ("source/benchmarks/README.md", "../docs/benchmarks.md", "../../benchmarks.md"),
        ("source/benchmarks/README.md", "serving.py", "serving.py"),
        ("offline.md", "https://example.org/README.md", "https://example.org/README.md"),
        ("offline.md", "#chat", "#chat"),
        ("offline.md", "nowhere.md", "nowhere.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page: str, link: str, shown: str) -> None:
    assert pages.with_site_links(f"See [this]({link}).", page, REPOSITORY) == f"See [this]({shown})."


@pytest.mark.parametrize("path", ["README.md", "docs/server.md", "benchmarks/README.md", "examples/fastapi_app.py"])
def test_a_files_place_in_the_site_is_found_both_ways(path: str) -> None:
    assert pages.file_of(pages.page_of(path)) == path


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://h/x.js"></script>',
        '<link rel="stylesheet" href="//h/x.css">',
        '<IMG SRC=" HTTP://h/x.png">',
        '<img srcset="https://h/x.png 2x">',
        "<p style=\"background: url('https://h/x.png')\">",
        '<svg><use href="https://h/x.svg#a"/></svg>',
    ],
)
def test_what_a_page_loads_from_other_hosts_is_found(html: str) -> None:
    assert len(pages.outside_resources(f"<body>{html}</body>")) == 1


def test_links_that_a_reader_follows_and_own_files_are_no_outside_resources() -> None:
    html = '<a href="https://h/">h</a><link rel="canonical" href="https://h/"><img src="a.svg"><script src="../a.js">'
    assert pages.outside_resources(html) == []


def test_the_site_asks_for_no_fonts_and_no_plugins_of_other_hosts() -> None:
    settings = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    assert [plugin if isinstance(plugin, str) else next(iter(plugin)) for plugin in settings["plugins"]] == [
        "search",
        "mkdocstrings",
    ]


def test_a_warning_of_the_generator_fails_the_build() -> None:
    (command,) = re.findall(r"mkdocs build (.*)", (REPOSITORY / "Makefile").read_text())
    assert "--strict" in command
    # Which keeps --strict from seeing any.
    assert "--quiet" not in command


def test_files_of_the_site_that_are_no_pages_stay_out_of_it() -> None:
    excluded = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["exclude_docs"].split()
    suffixes = {Path(pattern).suffix for pattern in excluded}
    assert {path.suffix for path in (DOCS / "site").iterdir() if path.is_file()} - suffixes == {".css"}
