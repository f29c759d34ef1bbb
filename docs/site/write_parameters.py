"""Rewrites the tables of docs/builtin-parameters.md: `python docs/site/write_parameters.py`."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from fastdeploy_lp.entrypoints.cli.processors import main
from fastdeploy_lp.logits_processor import BUILTIN

PAGE = Path(__file__).parents[1] / "builtin-parameters.md"
MARK = "<!-- What follows is written by docs/site/write_parameters.py. -->\n\n"


def current_page() -> str:
    """The expected page: the text above the mark, and the tables."""
    tables = io.StringIO()
    with contextlib.redirect_stdout(tables):
        main(["--markdown", *sorted(BUILTIN, key=str.lower)])
    return PAGE.read_text().partition(MARK)[0] + MARK + tables.getvalue()


if __name__ == "__main__":
    PAGE.write_text(current_page())
