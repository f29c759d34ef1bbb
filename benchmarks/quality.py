"""Quality of each precision relative to float32: teacher-forced on a text that nothing was calibrated on.

Every precision reads the same tokens; the reference is the float32 model with a float32 cache. ``benchmarks/README.md``
explains the numbers.
"""

from __future__ import annotations

import os
import sys

from fastdeploy_lp.platforms import current_platform

if __name__ == "__main__":
    # Before Paddle is imported, which reads its settings then.
    WANTED = current_platform().worker_environment()
    if any(os.environ.get(name) != value for name, value in WANTED.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **WANTED})

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import paddle
from numpy.typing import NDArray
from tqdm import tqdm

from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.registry import CausalLM, model_class
from fastdeploy_lp.startup.engine_args import EngineArgs

SCHEMA_VERSION = 1
MODEL = "smollm2-135m"
TEXTS = Path(__file__).parent / "data" / "quality"
CONTEXT, CHUNK, BLOCK_SIZE = 512, 128, 32
PRECISIONS = ("w8a16", "bfloat16", "w8a8", "float32/float16")
SMOKE_TOKENS = 96

Int64Array = NDArray[np.int64]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Must:
    """Requirements of a precision: top-1 agreement in %, and the perplexity's maximum distance from float32's in %."""

    agreement: float
    perplexity: float


MUSTS = {"w8a8": Must(95.0, 2.0), "w8a16": Must(98.0, 1.0), "bfloat16": Must(98.0, 1.0)}


@dataclass
class Score:
    """Sums over the tokens that a precision has been asked to predict."""

    tokens: int = 0
    agreed: int = 0
    loss: float = 0.0
    reference_loss: float = 0.0
    divergence: float = 0.0

    def take(self, reference: FloatArray, logits: FloatArray, following: Int64Array) -> None:
        """Log-probabilities [tokens, vocab_size] of float32, logits of the precision, and the tokens that follow."""
        own = log_softmax(logits)
        at = np.arange(len(following))
        self.tokens += len(following)
        self.agreed += int((own.argmax(axis=1) == reference.argmax(axis=1)).sum())
        self.loss -= float(own[at, following].sum(dtype=np.float64))
        self.reference_loss -= float(reference[at, following].sum(dtype=np.float64))
        self.divergence += float((np.exp(reference) * (reference - own)).sum(dtype=np.float64))

    def __add__(self, other: Score) -> Score:
        return Score(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


@dataclass(frozen=True)
class Quality:
    """A precision against float32: top-1 agreement in %, perplexity / float32's, mean KL divergence in nats."""

    precision: str
    text: str
    tokens: int
    agreement: float
    perplexity: float
    perplexity_ratio: float
    mean_kl: float

    @classmethod
    def of(cls, precision: str, text: str, score: Score) -> Quality:
        """The means of a score."""
        n = score.tokens
        return cls(
            precision=precision,
            text=text,
            tokens=n,
            agreement=100 * score.agreed / n,
            perplexity=float(np.exp(score.loss / n)),
            perplexity_ratio=float(np.exp((score.loss - score.reference_loss) / n)),
            mean_kl=score.divergence / n,
        )

    @property
    def holds(self) -> bool:
        """True if the precision meets its must, or has none."""
        must = MUSTS.get(self.precision.partition("/")[0])
        if must is None:
            return True
        return self.agreement >= must.agreement and abs(self.perplexity_ratio - 1) <= must.perplexity / 100


def log_softmax(logits: FloatArray) -> FloatArray:
    """Log-probabilities of logits [rows, vocab_size]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)).astype(
        np.float32
    )
    return found


class Reader:
    """A model in one precision that reads one text at a time."""

    def __init__(self, precision: str) -> None:
        quantization, _, cache = precision.partition("/")
        args = EngineArgs(
            model=MODEL,
            max_model_len=CONTEXT,
            max_num_seqs=1,
            block_size=BLOCK_SIZE,
            dtype="bfloat16" if quantization == "bfloat16" else "auto",
            quantization=None if quantization in ("float32", "bfloat16") else quantization,
            kv_cache_dtype=cache or "auto",
        )
        fd_config = args.create_fd_config(show_progress=False)
        self.directory = Path(fd_config.model_config.directory)
        files = read_model_files(self.directory, need_tokenizer=False).weights
        with paddle.no_grad(), open_weights(files) as weights:
            self.model: CausalLM = model_class(fd_config.model_config.hf_config)(fd_config, weights)
            self.model.initialize_cache(fd_config.cache_config.num_blocks)
        self._table = np.arange(1, fd_config.cache_config.num_blocks)

    def read(self, tokens: Int64Array, start: int) -> FloatArray:
        """Logits [tokens, vocab_size] of these tokens of the text, the first of which is its token number `start`."""
        chunk = SequenceChunk(tokens, start, self._table, num_outputs=len(tokens))
        with paddle.no_grad():
            logits: FloatArray = self.model.compute_logits(self.model.forward([chunk])).numpy()
        return logits


def held_text(directory: Path, tokenizer: Tokenizer, limit: int | None = None) -> dict[str, list[Int64Array]]:
    """Token ids of every text, in windows of at most CONTEXT; `limit` cuts each text short."""
    windows = {}
    for path in sorted(directory.glob("*.txt")):
        ids = np.array(tokenizer.encode(path.read_text(encoding="utf-8"))[:limit])
        windows[path.stem] = [ids[at : at + CONTEXT] for at in range(0, len(ids), CONTEXT)]
    return windows


def compare(
    precisions: Sequence[str], directory: Path = TEXTS, limit: int | None = None, *, show_progress: bool = False
) -> list[Quality]:
    """Each precision's quality on each text and, as the text "all", on all of them together."""
    reference, readers = Reader("float32/float32"), [Reader(precision) for precision in precisions]
    texts = held_text(directory, Tokenizer(reference.directory), limit)
    scores = {(precision, text): Score() for precision in precisions for text in texts}
    pieces = [(text, piece) for text, windows in texts.items() for window in windows for piece in _pieces(window)]
    for text, (tokens, start, following) in tqdm(pieces, desc="reading", unit="chunk", disable=not show_progress):
        expected = log_softmax(reference.read(tokens, start)[: len(following)])
        for precision, reader in zip(precisions, readers, strict=True):
            scores[precision, text].take(expected, reader.read(tokens, start)[: len(following)], following)
    found = []
    for precision in precisions:
        found += [Quality.of(precision, text, scores[precision, text]) for text in texts]
        found.append(Quality.of(precision, "all", sum((scores[precision, text] for text in texts), Score())))
    return found


def _pieces(window: Int64Array) -> Iterator[tuple[Int64Array, int, Int64Array]]:
    """Tokens, where they start, and the tokens that follow each of them; the last of a window has none."""
    for start in range(0, len(window) - 1, CHUNK):
        tokens = window[start : start + CHUNK]
        yield tokens, start, window[start + 1 : start + 1 + len(tokens)]


def table(found: Sequence[Quality]) -> str:
    """The results as lines of a table."""
    lines = [f"{'precision':<16} {'text':<10} {'tokens':>6} {'top-1 %':>8} {'ppl':>8} {'ppl ratio':>9} {'mean KL':>9}"]
    for row in found:
        lines.append(
            f"{row.precision:<16} {row.text:<10} {row.tokens:>6} {row.agreement:>8.2f} {row.perplexity:>8.3f} "
            f"{row.perplexity_ratio:>9.4f} {row.mean_kl:>9.5f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, report, and judge."""
    parser = argparse.ArgumentParser(description="Measure what each precision keeps of the float32 model.")
    parser.add_argument(
        "--precisions",
        nargs="+",
        default=list(PRECISIONS),
        metavar="P",
        help="float32, bfloat16, w8a8 or w8a16, each with /float32 or /float16 behind it for the KV cache",
    )
    parser.add_argument("--texts", type=Path, default=TEXTS, metavar="DIR", help="folder of .txt files to read")
    parser.add_argument("--smoke", action="store_true", help="a few tokens; fails only if it cannot measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args(argv)
    if not any(args.texts.glob("*.txt")):
        parser.error(f"--texts: {args.texts} holds no .txt file")
    found = compare(args.precisions, args.texts, SMOKE_TOKENS if args.smoke else None, show_progress=True)
    missed = [row.precision for row in found if row.text == "all" and not row.holds]
    if args.json is not None:
        report = {
            "schema_version": SCHEMA_VERSION,
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "model": MODEL,
            "context": CONTEXT,
            "qualities": [asdict(row) for row in found],
            "missed": missed,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    print(f"MISSED: {', '.join(missed)}" if missed else "all musts hold")
    return 1 if missed and not args.smoke else 0


if __name__ == "__main__":
    sys.exit(main())
