"""Error responses that routes declare in `/openapi.json`."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns OpenAI's error body for these statuses, and for 401 and 500, which any route may return."""
    return {status: {"model": ErrorResponse} for status in sorted({401, 500, *statuses})}
