"""The `fastdeploy-lp` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fastdeploy_lp.entrypoints.openai import api_server
from fastdeploy_lp.version import __version__

USAGE = """usage: fastdeploy-lp serve [options]     serve a model over the OpenAI API (serve --help lists the options)
       fastdeploy-lp --version"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a subcommand; an unknown one ends with status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    match arguments:
        case ["serve", *options]:
            api_server.main(options, prog="fastdeploy-lp serve")
        case ["--version"]:
            print(__version__)  # noqa: T201
        case ["--help" | "-h"]:
            print(USAGE)  # noqa: T201
        case _:
            print(USAGE, file=sys.stderr)  # noqa: T201
            raise SystemExit(2)
