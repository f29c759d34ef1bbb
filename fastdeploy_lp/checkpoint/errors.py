"""The one error of this package."""


class CheckpointError(ValueError):
    """A model cannot be used. One line: the file, what is wrong with it, and what to give instead."""
