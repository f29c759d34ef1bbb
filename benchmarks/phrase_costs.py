"""Cost of the builtins that write, choose and mark words in a step in which every row uses one, against torch.

The other side is Hugging Face's class if one exists, else a reimplementation of the algorithm of logits-processor-zoo
or FastDeploy. Each call represents one step of a generation; the logits are renewed before it, unmeasured.
"""

from __future__ import annotations

import os
import sys

from fastdeploy_lp.platforms import current_platform

if __name__ == "__main__":
    # Before Paddle is imported, which reads its settings then.
    WANTED = current_platform().worker_environment() | {"FASTDEPLOY_LP_PLUGINS": ""}
    if any(os.environ.get(name) != value for name, value in WANTED.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **WANTED})

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from builtin_batch import PROMPT, Batch, Edit
from chain import measure
from transformers.generation import logits_process as hf

OUTPUT = 64
EOS = (2,)
PHRASE = [5, 6, 7, 8]
# With which every prompt ends, so that reasoning is open.
THINK = 400
SHAPES = ((32, 49152, 10), (256, 151936, 2))
SMOKE_SHAPES = ((4, 512, 1),)


@dataclass(frozen=True)
class Contest:
    """A builtin with arguments, and who else does this: `rival` makes the other side's edit for a batch.

    output: how many tokens every request has generated.
    """

    noun: str
    args: Mapping[str, Any]
    against: str
    rival: Callable[[Batch], Edit]
    output: int = OUTPUT

    @property
    def name(self) -> str:
        """Name in the chain."""
        return f"{self.noun}LogitsProcessor"


def _enforce(row: torch.Tensor, token: int) -> None:
    """The zoo's: the token is lifted to the row's maximum, the others sink to its minimum."""
    choice = torch.full_like(row, float(row.min()))
    choice[token] = row.max()
    row.copy_(choice)


def _force_rows(_: Batch) -> Edit:
    """FastDeploy's, for a single token: row by row."""

    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row in logits:
            row.fill_(-math.inf)
            row[PHRASE[0]] = 0.0
        return logits

    return edit


def _gen_length(batch: Batch) -> Edit:
    """The zoo's processor for vLLM, with one callable per request."""
    outputs = batch.tokens[:, PROMPT:].tolist()

    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row, output in enumerate(outputs):
            if EOS[0] not in output:
                logits[row, EOS[0]] += batch.args["gen_length_boost"] * len(output) ** 2 / 10**2
        return logits

    return edit


def _cite(batch: Batch) -> Edit:
    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row, prompt in enumerate(batch.tokens[:, :PROMPT].tolist()):
            logits[row, list({*prompt, *EOS})] += batch.args["cite_boost"]
        return logits

    return edit


def _choices(batch: Batch) -> Edit:
    """Hugging Face's, which asks for the allowed tokens row by row and adds a mask to all logits."""
    tokens = [forms[0][0] for forms in batch.args["choices"]]
    processor = hf.PrefixConstrainedLogitsProcessor(lambda *_: tokens, num_beams=1)
    return lambda logits: processor(batch.input_ids, logits)


def _greatest(_: Batch) -> Edit:
    """The zoo's: asks each row for its most likely token."""

    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row in logits:
            if int(row.argmax()) == EOS[0]:
                _enforce(row, PHRASE[0])
        return logits

    return edit


def _unsure(batch: Batch) -> Edit:
    counts = torch.zeros(batch.rows)

    def edit(logits: torch.Tensor) -> torch.Tensor:
        counts.add_(logits.softmax(dim=-1).amax(dim=-1) < batch.args["fallback_min_p"])
        for row in range(batch.rows):
            if counts[row] > math.inf:
                _enforce(logits[row], PHRASE[0])
        return logits

    return edit


def _max_time(_: Batch) -> Edit:
    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row in logits:
            _enforce(row, EOS[0])
        return logits

    return edit


def _watermark(batch: Batch) -> Edit:
    watermark: Any = hf.WatermarkLogitsProcessor
    processor = watermark(batch.torch_logits.shape[1], "cpu")
    return partial(processor, batch.input_ids)


_THINKING = {"think_start": [[THINK]], "think_end": [PHRASE]}
CONTESTS = (
    Contest("ForcedSequence", {"forced_sequence": PHRASE}, "FastDeploy's way", _force_rows, output=0),
    Contest("ThinkingBudget", {"thinking_budget": 0, **_THINKING}, "FastDeploy's way", _force_rows, output=0),
    Contest("GenLength", {"gen_length_boost": 0.1}, "the zoo's way in vLLM", _gen_length),
    Contest("CiteFromPrompt", {"cite_boost": 1.0}, "the zoo's way", _cite),
    Contest("ForceLastPhrase", {"last_phrase": PHRASE}, "the zoo's way", _greatest),
    Contest("MultipleChoice", {"choices": [[[5]], [[6]], [[7]], [[8]]]}, "Hugging Face", _choices, output=0),
    Contest("TriggerPhrase", {"trigger_phrase": PHRASE, "trigger_on": [[2]]}, "the zoo's way", _greatest),
    Contest("MaxTime", {"max_time": 0.0}, "the zoo's way", _max_time),
    Contest(
        "LowConfidenceFallback",
        {"fallback_phrase": PHRASE, "fallback_min_p": 0.4, "fallback_tolerate": 10**9},
        "the zoo's way",
        _unsure,
    ),
    Contest("Watermark", {"watermark_key": 5}, "Hugging Face", _watermark),
)


def measure_shape(rows: int, vocab_size: int, turns: int) -> dict[str, float]:
    """Ratio of the other side's time to ours, by noun."""
    print(f"\n{f'{rows} x {vocab_size}, used by all rows':<28}{'us':>10}{'theirs':>10}{'ratio':>8}")
    ratios: dict[str, float] = {}
    for contest in CONTESTS:
        batch = Batch(
            rows,
            vocab_size,
            contest.name,
            contest.args,
            eos=EOS,
            sure=False,
            output=contest.output,
            prompt_end=THINK,
        )
        rival = contest.rival(batch)
        calls: dict[str, Callable[[], object]] = {"ours": batch.step, "theirs": partial(rival, batch.torch_logits)}
        us = measure(calls, turns, dict.fromkeys(calls, batch.restore))
        ratios[contest.noun] = us["theirs"] / us["ours"]
        line = f"  {contest.noun:<26}{us['ours']:>10.0f}{us['theirs']:>10.0f}{ratios[contest.noun]:>8.3g}"
        print(f"{line}  {contest.against}", flush=True)
    return ratios


def main(argv: Sequence[str] | None = None) -> int:
    """Status 0 if none takes longer than the other side."""
    parser = argparse.ArgumentParser(description="Measure the builtins that write, choose and mark words, in use.")
    parser.add_argument("--smoke", action="store_true", help="tiny run, which fails only if it cannot measure")
    smoke = parser.parse_args(argv).smoke
    ratios = [measure_shape(*shape) for shape in (SMOKE_SHAPES if smoke else SHAPES)]
    slower = {noun for each in ratios for noun, ratio in each.items() if ratio < 1}
    print(f"\n{'slower than the other side: ' + ', '.join(sorted(slower)) if slower else 'none is slower'}")
    return 1 if slower and not smoke else 0


if __name__ == "__main__":
    sys.exit(main())
