"""`fastdeploy-lp detect-watermark`: detects the watermark of `WatermarkLogitsProcessor` in a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.logits_processor.builtin.green_list import (
    DEFAULT_CONTEXT_WIDTH,
    DEFAULT_GAMMA,
    MAX_CONTEXT_WIDTH,
    GreenList,
    score,
)


@dataclass
class WatermarkArgs:
    """Watermark."""

    model: str = field(metadata={"help": "the model that may have written the text, for its tokenizer"})
    key: int = field(metadata={"help": "watermark_key of the requests"})
    input_file: str | None = field(
        default=None, metadata={"short": ["-i"], "help": "the text (default: standard input)"}
    )
    gamma: float = field(default=DEFAULT_GAMMA, metadata={"help": "watermark_gamma of the requests"})
    context_width: int = field(
        default=DEFAULT_CONTEXT_WIDTH, metadata={"help": "watermark_context_width of the requests"}
    )
    threshold: float = field(default=4.0, metadata={"help": "the z-score above which a text counts as marked"})

    def __post_init__(self) -> None:
        if self.key < 0:
            raise ValueError(f"key: {self.key} is not allowed; keys are 0 and above")
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma: {self.gamma:g} is not allowed; it lies between 0 and 1")
        if not 1 <= self.context_width <= MAX_CONTEXT_WIDTH:
            raise ValueError(f"context_width: {self.context_width} is not allowed; it is 1 to {MAX_CONTEXT_WIDTH}")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 for a text with the watermark, 1 without it, 2 for invalid options or an unreadable text."""
    description = "Tell whether a text was written with WatermarkLogitsProcessor and this key."
    (args,) = OptionsParser(WatermarkArgs, prog=prog, description=description).parse_options(argv)
    try:
        text = sys.stdin.read() if args.input_file is None else Path(args.input_file).read_text(encoding="utf-8")
        tokenizer = Tokenizer(resolve_model(args.model, show_progress=sys.stderr.isatty()).directory)
    except (OSError, ValueError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    found = score(tokenizer.encode_phrase(text), GreenList(args.key, args.gamma, args.context_width))
    marked = found.z > args.threshold
    print(f"z {found.z:.2f}")
    print(f"p-value {found.p_value:.3g}")
    print(f"green tokens {found.green} of {found.scored}, expected {found.gamma * found.scored:.1f}")
    print("watermarked" if marked else "not watermarked")
    return 0 if marked else 1
