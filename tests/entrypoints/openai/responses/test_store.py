"""The store of responses: owners, its bound, and its file."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from fastdeploy_lp.entrypoints.openai.responses.store import ResponseStore, StoredResponse


def response(size: int = 100, fill: bytes = b"x") -> StoredResponse:
    """Of `size` bytes."""
    return StoredResponse(fill * (size // 2), fill * (size - size // 2))


async def ids(store: ResponseStore, owner: str, wanted: list[str]) -> list[str]:
    return [each for each in wanted if await store.get(each, owner) is not None]


def test_a_response_is_its_owners(tmp_path: Path) -> None:
    async def use() -> None:
        store = ResponseStore(None, 1000)
        assert await store.put("a", "one", response())
        assert await store.get("a", "one") == response()
        assert await store.get("a", "two") is None
        assert await store.get("b", "one") is None
        assert not await store.delete("a", "two")
        assert await store.delete("a", "one")
        assert await store.get("a", "one") is None
        store.close()

    asyncio.run(use())


def test_a_full_store_drops_the_oldest_of_the_owner_with_the_most() -> None:
    async def use() -> None:
        store = ResponseStore(None, 500)
        await store.put("small", "modest", response(100))
        for name in "abcd":
            await store.put(name, "busy", response(100))
        await store.put("e", "busy", response(100))
        assert await ids(store, "busy", list("abcde")) == list("bcde")
        await store.put("other", "modest", response(150))
        assert await ids(store, "busy", list("bcde")) == list("de")
        assert await ids(store, "modest", ["small", "other"]) == ["small", "other"]
        store.close()

    asyncio.run(use())


def test_a_response_beyond_the_bound_drops_nothing() -> None:
    async def use() -> None:
        store = ResponseStore(None, 200)
        assert await store.put("a", "one", response(200))
        assert not await store.put("b", "one", response(201))
        assert await ids(store, "one", ["a", "b"]) == ["a"]
        store.close()

    asyncio.run(use())


def test_a_response_that_is_stored_again_is_replaced() -> None:
    async def use() -> None:
        store = ResponseStore(None, 200)
        await store.put("a", "one", response(150))
        assert await store.put("a", "one", response(160, b"y"))
        assert await store.get("a", "one") == response(160, b"y")
        store.close()

    asyncio.run(use())


def test_a_file_outlives_the_store_and_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def write() -> None:
        store = ResponseStore(str(path), 1000)
        await store.put("a", "one", response())
        store.close()

    async def read() -> StoredResponse | None:
        store = ResponseStore(str(path), 1000)
        found = await store.get("a", "one")
        store.close()
        return found

    asyncio.run(write())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert asyncio.run(read()) == response()


@pytest.mark.parametrize("kind", ["no database", "another program's", "another version's", "a folder", "nowhere"])
def test_a_file_that_cannot_be_used_is_refused_and_left_as_it_was(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "no database":
        path.write_bytes(b"Dear diary, " * 100)
    elif kind in ("another program's", "another version's"):
        version, table = (7, "responses") if kind.startswith("another version") else (0, "diary")
        database = sqlite3.connect(path)
        database.execute(f"CREATE TABLE {table} (x)")
        database.execute(f"PRAGMA user_version = {version}")
        database.commit()
        database.close()
    elif kind == "a folder":
        path.mkdir()
    else:
        path = tmp_path / "missing" / "file"
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ValueError, match=r"^response_store: .* cannot be used: "):
        ResponseStore(str(path), 1000)
    assert (path.read_bytes() if path.is_file() else None) == before
