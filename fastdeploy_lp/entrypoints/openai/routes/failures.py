"""The failures that routes declare in `/openapi.json`."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAI's error body for each of these, and for those that any route may have."""
    return {status: {"model": ErrorResponse} for status in sorted({401, 500, *statuses})}
