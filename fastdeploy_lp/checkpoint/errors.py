"""The one error of this package."""

MAX_CHARACTERS = 2000


class CheckpointError(ValueError):
    """A model cannot be used. The message is one line: the file, the fault, and the remedy.

    Unprintable characters in names and values quoted from the file are escaped. A long line loses its
    middle, since its end names the remedy.
    """

    def __init__(self, message: str) -> None:
        shown = message
        if len(message) > MAX_CHARACTERS:
            half = MAX_CHARACTERS // 2
            shown = f"{message[:half]}…{message[-half:]}"
        super().__init__("".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown))
