"""`fastdeploy-lp detect-watermark`: detects the watermark of a builtin logits processor in a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.logits_processor.builtin.green_list import (
    DEFAULT_CONTEXT_WIDTH,
    DEFAULT_GAMMA,
    GreenList,
    WatermarkScore,
    score,
)
from fastdeploy_lp.logits_processor.builtin.keyed_hash import MAX_CONTEXT_WIDTH
from fastdeploy_lp.logits_processor.builtin.keyed_scores import (
    DEFAULT_LAYERS,
    DEFAULT_WIDTH,
    MAX_LAYERS,
    DrawScore,
    gumbel_score,
    synthid_score,
)

GREEN: Final = "green"
GUMBEL: Final = "gumbel"
SYNTHID: Final = "synthid"


@dataclass
class WatermarkArgs:
    """Watermark."""

    model: str = field(metadata={"help": "the model that may have written the text, for its tokenizer"})
    key: int = field(metadata={"help": "watermark_key, gumbel_key or synthid_key of the requests"})
    scheme: str = field(
        default=GREEN,
        metadata={
            "choices": (GREEN, GUMBEL, SYNTHID),
            "help": "the processor: green for WatermarkLogitsProcessor, gumbel for GumbelWatermarkLogitsProcessor, "
            "synthid for SynthIDWatermarkLogitsProcessor",
        },
    )
    input_file: str | None = field(
        default=None, metadata={"short": ["-i"], "help": "the text (default: standard input)"}
    )
    gamma: float = field(default=DEFAULT_GAMMA, metadata={"help": "watermark_gamma of the requests (green)"})
    context_width: int | None = field(
        default=None,
        metadata={"help": f"context_width of the requests (default: {DEFAULT_CONTEXT_WIDTH}, else {DEFAULT_WIDTH})"},
    )
    layers: int = field(default=DEFAULT_LAYERS, metadata={"help": "synthid_layers of the requests (synthid)"})
    threshold: float = field(default=4.0, metadata={"help": "the z-score above which a text counts as marked"})

    def __post_init__(self) -> None:
        if self.key < 0:
            raise ValueError(f"key: {self.key} is not allowed; keys are 0 and above")
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma: {self.gamma:g} is not allowed; it lies between 0 and 1")
        if not 1 <= self.width <= MAX_CONTEXT_WIDTH:
            raise ValueError(f"context_width: {self.context_width} is not allowed; it is 1 to {MAX_CONTEXT_WIDTH}")
        if not 1 <= self.layers <= MAX_LAYERS:
            raise ValueError(f"layers: {self.layers} is not allowed; it is 1 to {MAX_LAYERS}")

    @property
    def width(self) -> int:
        """The given context width, or the processor's default."""
        if self.context_width is not None:
            return self.context_width
        return DEFAULT_CONTEXT_WIDTH if self.scheme == GREEN else DEFAULT_WIDTH


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 for a text with the watermark, 1 without it, 2 for invalid options or an unreadable text."""
    description = "Tell whether a text was written with a watermark and this key."
    (args,) = OptionsParser(WatermarkArgs, prog=prog, description=description).parse_options(argv)
    try:
        text = sys.stdin.read() if args.input_file is None else Path(args.input_file).read_text(encoding="utf-8")
        tokenizer = Tokenizer(resolve_model(args.model, show_progress=sys.stderr.isatty()).directory)
    except (OSError, ValueError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    found = _score(tokenizer.encode_phrase(text), args)
    marked = found.z > args.threshold
    print("\n".join(_lines(found)))
    print("watermarked" if marked else "not watermarked")
    return 0 if marked else 1


def _score(tokens: Sequence[int], args: WatermarkArgs) -> WatermarkScore | DrawScore:
    if args.scheme == GUMBEL:
        return gumbel_score(tokens, args.key, args.width)
    if args.scheme == SYNTHID:
        return synthid_score(tokens, args.key, args.width, args.layers)
    return score(tokens, GreenList(args.key, args.gamma, args.width))


def _lines(found: WatermarkScore | DrawScore) -> Iterator[str]:
    yield f"z {found.z:.2f}"
    yield f"p-value {found.p_value:.3g}"
    if isinstance(found, DrawScore):
        yield f"mean score {found.mean:.3f} of {found.scored} tokens, expected {found.expected:.3f}"
    else:
        yield f"green tokens {found.green} of {found.scored}, expected {found.gamma * found.scored:.1f}"
