"""Log format of the API process and the worker: text or JSON, one line per event."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}
LOG_LEVELS = tuple(LEVELS)
LOG_FORMATS = ("text", "json")
# Pass the API process's settings to the worker.
LEVEL_VARIABLE = "FASTDEPLOY_LP_LOG_LEVEL"
FORMAT_VARIABLE = "FASTDEPLOY_LP_LOG_FORMAT"

# Of one field: clients choose paths, and how many choices a request has.
MAX_FIELD_CHARACTERS = 1024
MAX_FIELD_ITEMS = 1024
# An operator asks for prompts to have them whole.
WHOLE_FIELDS = frozenset({"prompts"})

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)

# Control characters and line separators: a client's text must not look like a separate line, or control a terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value …`; tracebacks follow on separate lines."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        """The event as one line, and its traceback if it has one."""
        fields = "".join(f" {key}={_text_value(value)}" for key, value in _fields(record).items())
        message = record.getMessage().translate(_ESCAPES)
        line = f"{_time(record)} {record.levelname} {self._name or record.name}: {message}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the event's own fields."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        """The event as one line, its traceback as a field."""
        event = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": self._name or record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        # ASCII only, so that no character of a client's can end the line, whatever reads it.
        return json.dumps(event, default=str)


def configure_logging(level: str, log_format: str, name: str | None = None) -> None:
    """Sends this process's log lines to standard error; `name` replaces the names of the loggers."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(name) if log_format == "json" else TextFormatter(name))
    # Forced: some libraries add handlers to the root logger when they are imported.
    # Libraries may log anything at the level debug, prompts included.
    logging.basicConfig(level=max(logging.INFO, LEVELS[level]), handlers=[handler], force=True)
    logging.getLogger("fastdeploy_lp").setLevel(LEVELS[level])
    logging.captureWarnings(True)


def configure_from_environment(name: str) -> None:
    """Configures logging in a child process from its parent's settings."""
    level, log_format = os.environ.get(LEVEL_VARIABLE, "info"), os.environ.get(FORMAT_VARIABLE, "text")
    configure_logging(level if level in LOG_LEVELS else "info", log_format, name)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    """Returns the fields of `extra={"fields": {…}}`, cut to their bounds, and the id of the current request."""
    given: Mapping[str, object] = getattr(record, "fields", {})
    fields = {name: value if name in WHOLE_FIELDS else _cut(value) for name, value in given.items()}
    request_id = REQUEST_ID.get()
    return fields if request_id is None or "request_id" in fields else {"request_id": request_id, **fields}


def _cut(value: object) -> object:
    """The value, or its beginning and the number of characters or items that were left out."""
    if isinstance(value, str) and len(value) > MAX_FIELD_CHARACTERS:
        return f"{value[:MAX_FIELD_CHARACTERS]}… ({len(value) - MAX_FIELD_CHARACTERS} more)"
    if isinstance(value, list):
        items = [_cut(each) for each in value[:MAX_FIELD_ITEMS]]
        left_out = len(value) - len(items)
        return [*items, f"… ({left_out} more)"] if left_out else items
    return value


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


def _text_value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ",".join(map(_text_value, value)) or "-"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and not set(text) & set(" \"'=,\\")
    return text if plain and text else json.dumps(text)
