"""The files as they are sent: headers, keys, and what is there."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from support.playground import ROOT_PATH
from support.server import REPOSITORY, ServerProcess

from fastdeploy_lp.entrypoints.playground.routes import CONTENT_TYPES, StaticFile, static_files

FILES = static_files()
STATIC = REPOSITORY / "fastdeploy_lp" / "entrypoints" / "playground" / "static"
PAGES = {"/playground": "index.html", "/playground/metrics": "metrics.html"}


def test_every_file_has_a_type_and_an_etag_of_its_content() -> None:
    assert {path.name for path in STATIC.iterdir()} == set(FILES)
    for file in FILES.values():
        assert file.headers["Content-Type"] == CONTENT_TYPES[Path(file.name).suffix[1:]]
    one, other = StaticFile("a.js", b"1"), StaticFile("a.js", b"2")
    assert one.etag == StaticFile("b.js", b"1").etag != other.etag
    assert one.is_known_by(f'"x", W/{one.etag}')
    assert one.is_known_by("*")
    assert not one.is_known_by(other.etag)
    assert not one.is_known_by(None)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".html")])
def test_pages_hold_no_script_and_no_style_and_name_files_that_exist(name: str) -> None:
    text = FILES[name].content.decode()
    assert not re.search(r"<style|<script(?! (type=\"module\" )?src=)|\sstyle=|\son\w+=", text)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
    linked = re.findall(r'(?:src|href)="(?:playground/)?([\w.]+\.(?:js|css|svg))"', text)
    assert len(linked) > 4
    assert set(linked) <= set(FILES)


def test_modules_import_files_that_exist_and_nothing_from_elsewhere() -> None:
    for name, file in FILES.items():
        text = file.content.decode()
        imported = re.findall(r'^(?:import|export) .* from "(.*)";$', text, re.MULTILINE)
        assert {each.removeprefix("./") for each in imported} <= set(FILES), name
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name


def test_every_file_is_used() -> None:
    text = "".join(file.content.decode() for file in FILES.values())
    for name in FILES:
        if not name.endswith(".html"):
            assert re.search(rf'["/]{re.escape(name)}"', text), name


def test_answers_have_the_headers_of_a_page_that_nobody_frames_or_alters(served: ServerProcess) -> None:
    for path, name in PAGES.items():
        answer = httpx.get(f"{served.url}{path}")
        assert answer.status_code == 200
        assert answer.content == FILES[name].content
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_browsers_are_told_that_their_copy_is_still_the_same(served: ServerProcess) -> None:
    url = f"{served.url}/playground/element.js"
    first = httpx.get(url)
    assert first.headers["cache-control"] == "no-cache"
    again = httpx.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert httpx.get(url, headers={"If-None-Match": '"older"'}).content == first.content
    head = httpx.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(first.content))


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..%2f__init__.py", "__init__.py", "%2e%2e/routes.py"])
def test_nothing_else_is_served(served: ServerProcess, name: str) -> None:
    assert httpx.get(f"{served.url}/playground/{name}").status_code == 404


def test_pages_need_no_key_and_the_api_still_does(locked: ServerProcess) -> None:
    for root in ("", ROOT_PATH):
        for path in (*PAGES, "/playground/element.js"):
            assert httpx.get(f"{locked.url}{root}{path}").status_code == 200, path
        for path in ("/v1/logits_processors", "/playgrounds", "/v1/models"):
            assert httpx.get(f"{locked.url}{root}{path}").status_code == 401, path


def test_the_root_leads_to_the_page_without_a_key_and_below_a_proxys_path(
    served: ServerProcess, locked: ServerProcess
) -> None:
    for server, location in ((served, "/playground"), (locked, f"{ROOT_PATH}/playground")):
        answer = httpx.get(f"{server.url}/")
        assert (answer.status_code, answer.headers["location"]) == (307, location)


def test_without_the_option_there_is_no_playground(strict_server: ServerProcess) -> None:
    answer = httpx.get(f"{strict_server.url}/playground")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_the_server_prints_where_it_is(served: ServerProcess) -> None:
    assert f"{served.url}/playground\n" in served.log
