"""`fastdeploy-lp processors`: what logits processors are and take, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.logits_processor import BUILTIN, LogitsProcessorSpecError, load_processors


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Show the chain that `--logits-processors SPEC …` would give; status 2 for a SPEC that leads to no processor."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Show what these logits processors, and the installed ones, are and take."
    )
    text = "as behind --logits-processors (default: the builtin ones)"
    parser.add_argument("specs", nargs="*", metavar="SPEC", help=text)
    specs = parser.parse_args(argv).specs
    try:
        declared = load_processors(specs or list(BUILTIN))
    except LogitsProcessorSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for info in ProcessorStates(declared).describe():
        print(f"{info.order}. {info.name}  ({info.dialect}, {info.source}: {info.spec})")
        print(f"   {info.description or 'no description'}")
        parameters = "unknown to the server" if info.parameters is None else json.dumps(info.parameters)
        print(f"   parameters: {parameters}")
    return 0
