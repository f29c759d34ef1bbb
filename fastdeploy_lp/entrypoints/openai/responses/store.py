"""Responses that later requests may name: in memory, or in a file that outlives the server."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")

MEMORY = ":memory:"
# Of the table: another one is of another program, or of another version of this one.
VERSION = 1
TABLE = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, stored REAL NOT NULL, bytes INTEGER NOT NULL,
    response BLOB NOT NULL, items BLOB NOT NULL
)
"""
# Holds all that the search for room reads.
INDEX = "CREATE INDEX responses_of_owner ON responses (owner, stored, bytes)"


@dataclass(frozen=True)
class StoredResponse:
    """A finished response. response: its JSON. items: JSON list of the conversation's items up to it."""

    response: bytes
    items: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of both."""
        return len(self.response) + len(self.items)


class ResponseStore:
    """At most `max_bytes` of responses, each for the owner (a digest of an API key) that it belongs to.

    A full store drops the oldest response of the owner that has the most bytes, so that one busy client does not
    evict the responses of others. path: an SQLite file, which only its owner may read; None for memory. Raises
    ValueError naming the option for a file that cannot be used.
    """

    def __init__(self, path: str | None, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        try:
            self._database = _opened(path)
        except (sqlite3.Error, OSError) as error:
            raise ValueError(f"response_store: {path} cannot be used: {error}") from None
        # One thread: a file may make callers wait, and the event loop must not.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="response-store")
        self._close = weakref.finalize(self, _close, self._thread, self._database)

    async def put(self, response_id: str, owner: str, stored: StoredResponse) -> bool:
        """Keeps a response, for which older ones may be dropped; returns False for one beyond the store's size."""
        if stored.num_bytes > self.max_bytes:
            return False
        await self._run(lambda: self._put(response_id, owner, stored))
        return True

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """Returns a response of this owner; None if there is none."""
        return await self._run(lambda: self._get(response_id, owner))

    async def delete(self, response_id: str, owner: str) -> bool:
        """Drops a response of this owner; returns False if there is none."""
        return await self._run(lambda: self._delete(response_id, owner))

    def close(self) -> None:
        """Writes everything to the file, and closes it."""
        self._close()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _put(self, response_id: str, owner: str, stored: StoredResponse) -> None:
        with self._database as database:
            database.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            self._make_room(stored.num_bytes)
            row = (response_id, owner, time.time(), stored.num_bytes, stored.response, stored.items)
            database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)

    def _make_room(self, num_bytes: int) -> None:
        while True:
            held = self._database.execute("SELECT owner, SUM(bytes) FROM responses GROUP BY owner").fetchall()
            if sum(size for _, size in held) + num_bytes <= self.max_bytes:
                return
            largest = max(held, key=lambda each: each[1])[0]
            oldest = "SELECT id FROM responses WHERE owner = ? ORDER BY stored LIMIT 1"
            self._database.execute(f"DELETE FROM responses WHERE id = ({oldest})", (largest,))

    def _get(self, response_id: str, owner: str) -> StoredResponse | None:
        found = self._database.execute(
            "SELECT response, items FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
        ).fetchone()
        return None if found is None else StoredResponse(*found)

    def _delete(self, response_id: str, owner: str) -> bool:
        with self._database as database:
            gone = database.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
            return gone.rowcount > 0


def _opened(path: str | None) -> sqlite3.Connection:
    if path is not None:
        # SQLite would create it readable for everyone.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path or MEMORY, check_same_thread=False)
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION) or (version == 0 and database.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise sqlite3.DatabaseError("it is no store of responses of this version")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            database.execute(TABLE)
            database.execute(INDEX)
            database.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        database.close()
        raise
    return database


def _close(thread: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
    thread.shutdown()
    database.close()
