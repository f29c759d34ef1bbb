"""`fastdeploy-lp new-processor`: writes an installable package with a logits processor, its tests and a README."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastdeploy_lp.entrypoints.scaffold.package import DIALECTS, ProcessorPackage
from fastdeploy_lp.entrypoints.scaffold.wasm_project import LANGUAGES, WasmProject
from fastdeploy_lp.entrypoints.usage import CommandParser, choices_shown, one_of

WASM = "wasm"


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 if the package is written, 2 for an invalid name or an existing folder."""
    parser = CommandParser(
        prog=prog,
        description="Write the package of a new logits processor, which passes its own tests. Nothing is overwritten.",
    )
    parser.add_argument("name", metavar="NAME", help="what requests will call it, such as my-processor")
    text = "what it is written for (default: native); docs/logits-processors.md shows each"
    dialects = (*DIALECTS, WASM)
    parser.add_argument(
        "--dialect", type=one_of(dialects), metavar=choices_shown(dialects), default="native", help=text
    )
    text = "of the dialect wasm (default: c); docs/wasm.md shows it"
    parser.add_argument("--language", type=one_of(LANGUAGES), metavar=choices_shown(LANGUAGES), help=text)
    parser.add_argument("--directory", type=Path, default=Path(), help="where its folder goes (default: here)")
    args = parser.parse_args(argv)
    if args.language is not None and args.dialect != WASM:
        parser.error(f"argument --language: is for --dialect {WASM}")
    try:
        written = _wasm_project(args) if args.dialect == WASM else _package(args)
    except FileExistsError as error:
        print(f"error: {error.filename} is there already; nothing was written", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(written)
    return 0


def _package(args: argparse.Namespace) -> str:
    package = ProcessorPackage(args.name, args.dialect)
    folder = package.write(args.directory)
    return (
        f"{folder} is written; its code is in {folder / package.module / 'processor.py'}. Next:\n"
        f"  pip install --editable '{folder}[test]'\n"
        f"  pytest {folder}\n"
        f"  fastdeploy-lp check {package.module} --logits-processors-args '{{\"token_id\": 42}}'"
    )


def _wasm_project(args: argparse.Namespace) -> str:
    project = WasmProject(args.name, args.language or LANGUAGES[0])
    folder = project.write(args.directory)
    return (
        f"{folder} is written; its README has the next steps. First:\n"
        f"  make -C {folder}\n"
        f"  fastdeploy-lp check {folder / project.module}.wasm"
    )
