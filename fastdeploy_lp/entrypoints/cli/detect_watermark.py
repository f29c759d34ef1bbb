"""`fastdeploy-lp detect-watermark`: whether a text holds the mark of `WatermarkLogitsProcessor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastdeploy_lp.checkpoint import CheckpointError, resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.logits_processor.builtin.green_list import (
    DEFAULT_CONTEXT_WIDTH,
    DEFAULT_GAMMA,
    MAX_CONTEXT_WIDTH,
    GreenList,
    score,
)

DEFAULT_THRESHOLD = 4.0


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Status 0 for a text with the mark, 1 for one without, 2 for options or a text that cannot be used."""
    args = _parser(prog).parse_args(argv)
    try:
        _require_allowed(args)
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        tokenizer = Tokenizer(resolve_model(args.model, show_progress=sys.stderr.isatty()).directory)
    except (OSError, ValueError, CheckpointError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    greens = GreenList(args.key, args.gamma, args.context_width)
    found = score(tokenizer.encode_phrase(text), greens)
    marked = found.z > args.threshold
    print(f"z {found.z:.2f}")
    print(f"p-value {found.p_value:.3g}")
    print(f"green tokens {found.green} of {found.scored}, expected {found.gamma * found.scored:.1f}")
    print("watermarked" if marked else "not watermarked")
    return 0 if marked else 1


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description="Tell whether a text was written with WatermarkLogitsProcessor and this key."
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the text (default: standard input)")
    parser.add_argument("--model", required=True, help="the model that may have written it, for its tokenizer")
    parser.add_argument("--key", type=int, required=True, help="watermark_key of the requests")
    parser.add_argument(
        "--gamma", type=float, default=DEFAULT_GAMMA, help="watermark_gamma of the requests (default: %(default)s)"
    )
    parser.add_argument(
        "--context-width",
        type=int,
        default=DEFAULT_CONTEXT_WIDTH,
        help="watermark_context_width of the requests (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, default=DEFAULT_THRESHOLD, help="z above which a text counts as marked (default: 4)"
    )
    return parser


def _require_allowed(args: argparse.Namespace) -> None:
    if args.key < 0:
        raise ValueError(f"key: {args.key} is not allowed; keys are 0 and above")
    if not 0 < args.gamma < 1:
        raise ValueError(f"gamma: {args.gamma:g} is not allowed; it lies between 0 and 1")
    if not 1 <= args.context_width <= MAX_CONTEXT_WIDTH:
        raise ValueError(f"context_width: {args.context_width} is not allowed; it is 1 to {MAX_CONTEXT_WIDTH}")
