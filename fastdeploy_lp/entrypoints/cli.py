"""The `fastdeploy-lp` command."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.entrypoints.openai import api_server
from fastdeploy_lp.logits_processor import BUILTIN, LogitsProcessorSpecError, load_processors
from fastdeploy_lp.version import __version__

USAGE = """usage: fastdeploy-lp serve [options]        serve a model over the OpenAI API (serve --help: options)
       fastdeploy-lp processors [SPEC …]    show what these logits processors, and the installed ones, are and take
       fastdeploy-lp --version"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a subcommand; an unknown one ends with status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    match arguments:
        case ["serve", *options]:
            api_server.main(options, prog="fastdeploy-lp serve")
        case ["processors", *specs]:
            _show_processors(specs)
        case ["--version"]:
            print(__version__)  # noqa: T201
        case ["--help" | "-h"]:
            print(USAGE)  # noqa: T201
        case _:
            print(USAGE, file=sys.stderr)  # noqa: T201
            raise SystemExit(2)


def _show_processors(specs: Sequence[str]) -> None:
    """The chain that `--logits-processors SPEC …` would give, without SPECs the builtin ones and the installed ones."""
    try:
        declared = load_processors(list(specs) or list(BUILTIN))
    except LogitsProcessorSpecError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None
    for info in ProcessorStates(declared).describe():
        print(f"{info.order}. {info.name}  ({info.dialect}, {info.source}: {info.spec})")  # noqa: T201
        print(f"   {info.description or 'no description'}")  # noqa: T201
        parameters = "unknown to the server" if info.parameters is None else json.dumps(info.parameters)
        print(f"   parameters: {parameters}")  # noqa: T201
