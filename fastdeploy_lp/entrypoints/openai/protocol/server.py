"""Bodies of the server's status routes."""

from __future__ import annotations

from pydantic import BaseModel


class ServerLoad(BaseModel):
    """Body of GET /load: sequences in slots, sequences waiting for a slot, and their sum under vLLM's name."""

    server_load: int
    running: int
    waiting: int


class ServerVersion(BaseModel):
    """Body of GET /version."""

    version: str
