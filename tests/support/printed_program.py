"""Programs that a page prints, run in the tests' own process: one of its own takes a second to import the package."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def printed_by(program: str, folder: Path | None = None, *, names: Mapping[str, Any] | None = None) -> str:
    """Returns the standard output of a program, which runs in `folder` if there is one, and knows `names`.

    Its own names go with it, so an engine that it leaves open ends with the call.
    """
    printed, before = io.StringIO(), Path.cwd()
    with contextlib.redirect_stdout(printed):
        if folder is not None:
            os.chdir(folder)
        try:
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__", **(names or {})})
        finally:
            os.chdir(before)
    return printed.getvalue()
