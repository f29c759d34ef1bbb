"""`fastdeploy-lp new-processor`: writes an installable package with a logits processor, its tests and a README."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fastdeploy_lp.entrypoints.scaffold.package import DIALECTS, ProcessorPackage
from fastdeploy_lp.entrypoints.usage import CommandParser, choices_shown, one_of


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 if the package is written, 2 for an invalid name or an existing folder."""
    parser = CommandParser(
        prog=prog,
        description="Write the package of a new logits processor, which passes its own tests. Nothing is overwritten.",
    )
    parser.add_argument("name", metavar="NAME", help="what requests will call it, such as my-processor")
    text = "what it is written for (default: native); docs/logits-processors.md shows each"
    parser.add_argument(
        "--dialect", type=one_of(DIALECTS), metavar=choices_shown(DIALECTS), default="native", help=text
    )
    parser.add_argument("--directory", type=Path, default=Path(), help="where its folder goes (default: here)")
    args = parser.parse_args(argv)
    try:
        package = ProcessorPackage(args.name, args.dialect)
        folder = package.write(args.directory)
    except FileExistsError as error:
        print(f"error: {error.filename} is there already; nothing was written", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{folder} is written; its code is in {folder / package.module / 'processor.py'}. Next:")
    print(f"  pip install --editable '{folder}[test]'")
    print(f"  pytest {folder}")
    print(f"  fastdeploy-lp check {package.module} --logits-processors-args '{{\"token_id\": 42}}'")
    return 0
