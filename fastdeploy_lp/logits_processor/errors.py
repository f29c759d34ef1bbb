"""What can be wrong with a declaration or with a request's arguments."""


class RequestArgsError(ValueError):
    """An argument that no declared processor can take; `path` is its JSON path in the request body."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
