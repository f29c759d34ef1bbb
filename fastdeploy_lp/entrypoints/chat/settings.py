"""The request fields that a chat sends with its messages, set by flags and slash commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PROCESSORS, ARGS = "logits_processors", "logits_processors_args"


class Settings:
    """Fields of a request's body; every method raises ValueError naming the wrong field or value."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        # In execution order.
        self._used: dict[str, dict[str, Any]] = {}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields to send; the server applies its defaults to the others."""
        used = [{"name": name, "params": params} for name, params in self._used.items()]
        return {**self._fields, **({PROCESSORS: used} if used else {})}

    def set(self, field: str, value: str) -> None:
        """Sets a field to a value in JSON; a value that is not JSON is a string."""
        if field in ("messages", "stream", "n", PROCESSORS):
            hint = "; switch logits processors with /use" if field == PROCESSORS else ""
            raise ValueError(f"{field}: cannot be set in a chat{hint}")
        self._fields[field] = _object(field, value) if field == ARGS else _value(value)

    def unset(self, field: str) -> None:
        """Removes a field, so that the server applies its default."""
        if field not in self._fields:
            raise ValueError(f"{field}: is not set; set are {', '.join(self._fields) or 'none'}")
        del self._fields[field]

    def use(self, name: str, params: str) -> None:
        """Selects a declared logits processor, after those already selected, with a JSON object of parameters."""
        self._used[name] = _object(name, params or "{}")

    def unuse(self, name: str) -> None:
        """Removes a selected logits processor."""
        if name not in self._used:
            raise ValueError(f"{name}: is not in use; in use are {', '.join(self._used) or 'none'}")
        del self._used[name]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: no valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f'{name}: must be a JSON object like {{"logit_bias": {{"42": 5}}}}, not {text}')
    return dict(value)
