"""Bodies that tell of the server itself."""

from __future__ import annotations

from pydantic import BaseModel


class ServerLoad(BaseModel):
    """Body of GET /load: sequences in slots, sequences that wait for one, and their sum under vLLM's name."""

    server_load: int
    running: int
    waiting: int


class ServerVersion(BaseModel):
    """Body of GET /version."""

    version: str
