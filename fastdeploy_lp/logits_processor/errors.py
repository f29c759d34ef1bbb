"""Errors in a declaration of processors, or in a request's fields for them."""


class LogitsProcessorSpecError(ValueError):
    """A SPEC that does not lead to a logits processor; the message says what to write instead."""

    def __init__(self, spec: str, problem: str) -> None:
        super().__init__(f"logits_processors: {spec!r} {problem}")


class RequestArgsError(ValueError):
    """A part of a request that no declared processor accepts; `path` is its JSON path, None if it has none."""

    def __init__(self, path: str | None, reason: str) -> None:
        super().__init__(reason if path is None else f"{path}: {reason}")
        self.path = path
        self.reason = reason
