"""What can be wrong with a declaration, or with what a request says of processors."""


class LogitsProcessorSpecError(ValueError):
    """A SPEC that does not lead to a logits processor; the message says what to write instead."""

    def __init__(self, spec: str, problem: str) -> None:
        super().__init__(f"logits_processors: {spec!r} {problem}")


class RequestArgsError(ValueError):
    """Something that no declared processor can take; `path` is its JSON path in the request, None if it has none."""

    def __init__(self, path: str | None, reason: str) -> None:
        super().__init__(reason if path is None else f"{path}: {reason}")
        self.path = path
        self.reason = reason
