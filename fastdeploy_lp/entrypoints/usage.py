"""Command-line parser of every subcommand: an error is one line, which ends with a pointer to --help."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from fastdeploy_lp.suggestion import did_you_mean

MISUSED = 2


class CommandParser(argparse.ArgumentParser):
    """An argument parser that takes options by their full names only and reports errors without the usage."""

    def __init__(self, prog: str | None = None, **kwargs: object) -> None:
        super().__init__(prog, allow_abbrev=False, **kwargs)  # type: ignore[arg-type]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parses as argparse does; for an unknown option, names the option that is most like it."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._reason(unknown))
        return known

    def error(self, message: str) -> NoReturn:
        """Exits with status 2 and the message; a usage before it would hide it."""
        self.exit(MISUSED, f"error: {message} (see {self.prog} --help)\n")

    def _reason(self, unknown: Sequence[str]) -> str:
        named = [word for word in unknown if word.startswith("-")]
        # Only the name: the value may be a key.
        name = (named or unknown)[0].partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {name!r}"
        return f"unknown option {name}{did_you_mean(name, self._option_string_actions)}"


def one_of(choices: Collection[str]) -> Callable[[str], str]:
    """Returns a `type` for an argument: argparse's own `choices` lists them without a suggestion."""

    def chosen(text: str) -> str:
        if text in choices:
            return text
        allowed = ", ".join(choices)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed{did_you_mean(text, choices)}; allowed: {allowed}")

    return chosen


def choices_shown(choices: Collection[str]) -> str:
    """Returns the choices as the help page shows them."""
    return f"{{{','.join(choices)}}}"
