"""`fastdeploy-lp processors`: lists logits processors and their arguments, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fastdeploy_lp.engine.processor_states import ProcessorInfo, ProcessorStates
from fastdeploy_lp.entrypoints.parameter_table import parameter_section
from fastdeploy_lp.logits_processor import BUILTIN, load_processors, vllm_compat


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Shows the chain that `--logits-processors SPEC …` declares; returns 2 for a SPEC without a processor."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Show what these logits processors, and the installed ones, are and take."
    )
    text = "as behind --logits-processors (default: the builtin ones)"
    parser.add_argument("specs", nargs="*", metavar="SPEC", help=text)
    parser.add_argument("--mandatory", nargs="+", default=[], metavar="NAME", help="as --mandatory of a server")
    parser.add_argument("--markdown", action="store_true", help="as Markdown, with a table of arguments each")
    parser.add_argument("--vllm-compat", action="store_true", help="let them import vllm's modules without vLLM")
    options = parser.parse_args(argv)
    if options.vllm_compat:
        vllm_compat.install()
    try:
        declared = load_processors(
            options.specs or list(BUILTIN), mandatory=options.mandatory, vllm_entry_points=options.vllm_compat
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show = parameter_section if options.markdown else _lines
    print("\n".join(show(info) for info in ProcessorStates(declared).describe()).rstrip("\n"))
    return 0


def _lines(info: ProcessorInfo) -> str:
    parameters = "unknown to the server" if info.parameters is None else json.dumps(info.parameters)
    mandatory = ", mandatory" if info.mandatory else ""
    return (
        f"{info.order}. {info.name}  ({info.dialect}, {info.source}: {info.spec}{mandatory})\n"
        f"   {info.description or 'no description'}\n"
        f"   parameters: {parameters}"
    )
