"""The one error of this package."""

MAX_CHARACTERS = 2000


class CheckpointError(ValueError):
    """A model cannot be used. One line: the file, what is wrong with it, and what to give instead.

    Names and values of the file that the line quotes are escaped where they cannot be printed. A long line loses its
    middle, since its end says what to give.
    """

    def __init__(self, message: str) -> None:
        shown = message
        if len(message) > MAX_CHARACTERS:
            half = MAX_CHARACTERS // 2
            shown = f"{message[:half]}…{message[-half:]}"
        super().__init__("".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown))
