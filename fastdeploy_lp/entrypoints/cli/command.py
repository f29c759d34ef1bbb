"""The command `fastdeploy-lp`: a table of subcommands, of which one is loaded and run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from fastdeploy_lp.entrypoints.usage import CommandParser
from fastdeploy_lp.suggestion import did_you_mean
from fastdeploy_lp.version import __version__

PROGRAM = "fastdeploy-lp"
OPTIONS = ("-h", "--help", "--version")


@dataclass(frozen=True)
class Subcommand:
    """A name, the module whose `main(argv, prog)` runs it, and a one-line summary."""

    name: str
    module: str
    summary: str


_HERE = "fastdeploy_lp.entrypoints"

SUBCOMMANDS = (
    Subcommand("serve", f"{_HERE}.openai.api_server", "serve a model over the OpenAI API"),
    Subcommand("chat", f"{_HERE}.cli.chat", "chat in the terminal, with a running server or a model of its own"),
    Subcommand("run-batch", f"{_HERE}.cli.run_batch", "answer a file of requests in the format of OpenAI's batches"),
    Subcommand("replay", f"{_HERE}.cli.replay", "run the requests of a request log again and report differences"),
    Subcommand("bench", f"{_HERE}.bench.serving", "measure a server under closed-loop load"),
    Subcommand("processors", f"{_HERE}.cli.processors", "show what logits processors are and take"),
    Subcommand("explain", f"{_HERE}.cli.explain", "show what each logits processor makes of each token"),
    Subcommand("plugins", f"{_HERE}.cli.plugins", "show which plugins are installed and what became of each"),
    Subcommand("detect-watermark", f"{_HERE}.cli.detect_watermark", "tell whether a text holds a watermark"),
    Subcommand("check", f"{_HERE}.cli.check", "hold a logits processor against the contract, without a server"),
    Subcommand("new-processor", f"{_HERE}.cli.new_processor", "write the package of a new logits processor"),
    Subcommand("collect-env", f"{_HERE}.cli.collect_env", "show versions and settings, for a report of a problem"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a subcommand; an unknown one ends with status 2."""
    if argv is None:
        _import_from_here()
    arguments = list(sys.argv[1:] if argv is None else argv)
    subcommand = next((each for each in SUBCOMMANDS if arguments[:1] == [each.name]), None)
    if subcommand is None:
        parser = _parser()
        if arguments and arguments[0] not in OPTIONS:
            names = [each.name for each in SUBCOMMANDS]
            parser.error(f"unknown subcommand {arguments[0]!r}{did_you_mean(arguments[0], names)}")
        # Ends the process after printing help, the version or an error.
        parser.parse_args(arguments)
        return
    try:
        # Imports only this subcommand's module, to save time.
        run = import_module(subcommand.module).main
        status = run(arguments[1:], f"{PROGRAM} {subcommand.name}")
    except KeyboardInterrupt:
        # Ctrl-C, also during the imports, is no error that needs a traceback.
        status = 128 + signal.SIGINT
    except BrokenPipeError:
        # The output's reader, such as `head`, has ended; without a file, the flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    if status:
        raise SystemExit(status)


def _import_from_here() -> None:
    """Lets SPECs name modules of the current folder, as with `python -m`: a script's path has its own folder instead.

    The worker and the helpers are started with `python -m`, so that they find the same modules.
    """
    here = os.getcwd()
    # `python -P` and PYTHONSAFEPATH, from Python 3.11 on.
    if not getattr(sys.flags, "safe_path", False) and not {"", here} & set(sys.path):
        sys.path.insert(0, here)


def _parser() -> CommandParser:
    width = max(len(each.name) for each in SUBCOMMANDS)
    table = "\n".join(f"  {each.name:<{width}}  {each.summary}" for each in SUBCOMMANDS)
    parser = CommandParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} SUBCOMMAND [options]",
        description=f"subcommands:\n{table}\n\n`{PROGRAM} SUBCOMMAND --help` shows a subcommand's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("subcommand", metavar="SUBCOMMAND", help=argparse.SUPPRESS)
    return parser
