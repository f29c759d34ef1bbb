"""Cost of each builtin processor in a step in which every request uses it, compared with the same work in torch.

The other side is Hugging Face's class if one exists and is not slower than vLLM's, else a reimplementation of vLLM's
algorithm, else of the algorithm of the project that introduced the idea.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from builtin_batch import PROMPT, Batch, Edit
from transformers.generation import logits_process as hf

EOS = (2, 7)
# Tokens of a row that only one side may cut: float32 probabilities are rounded, ours are not.
MAX_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Contest:
    """A builtin with arguments, and who else does this.

    `rival` makes the other side's edit for a batch.
    """

    noun: str
    args: Mapping[str, Any]
    against: str
    rival: Callable[[Batch], Edit]
    restores: bool = True
    """Whether the logits have to be made new before each call, for a second one would find something else."""

    @property
    def name(self) -> str:
        """Name in the chain."""
        return f"{self.noun}LogitsProcessor"


def _hugging_face(make: Callable[[], Any]) -> Callable[[Batch], Edit]:
    return lambda batch: partial(make(), batch.input_ids)


def _masked_fill(batch: Batch) -> Edit:
    """vLLM's: a mask that is ready."""
    mask = torch.ones(batch.torch_logits.shape, dtype=torch.bool)
    mask[:, batch.args["allowed_token_ids"]] = False
    return lambda logits: logits.masked_fill_(mask, -math.inf)


def _bad_words(batch: Batch) -> Edit:
    outputs = [running.output_token_ids for running in batch.running]

    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row, output in enumerate(outputs):
            for *beginning, last in batch.args["bad_words_token_ids"]:
                if len(beginning) <= len(output) and output[len(output) - len(beginning) :] == beginning:
                    logits[row, last] = -math.inf
        return logits

    return edit


def _min_tokens(batch: Batch) -> Edit:
    """vLLM's: a look at every output's length, and indices that are ready."""
    rows = torch.arange(batch.rows).repeat_interleave(len(EOS))
    tokens, banned = torch.tensor(EOS).repeat(batch.rows), torch.tensor(-math.inf)
    minimum = batch.args["min_tokens"]
    waiting = {row: (minimum, running.output_token_ids) for row, running in enumerate(batch.running)}

    def edit(logits: torch.Tensor) -> torch.Tensor:
        done = tuple(row for row, (least, output) in waiting.items() if len(output) >= least)
        return logits if done else logits.index_put_((rows, tokens), banned)

    return edit


def _min_p(batch: Batch) -> Edit:
    shares = torch.full((batch.rows, 1), batch.args["min_p"])

    def edit(logits: torch.Tensor) -> torch.Tensor:
        probability = torch.softmax(logits, dim=-1)
        least = probability.amax(dim=-1, keepdim=True).mul_(shares)
        return logits.masked_fill_(probability < least, -math.inf)

    return edit


def _counted_penalty(batch: Batch) -> Edit:
    """vLLM's: counts of all tokens in every step."""
    output = torch.from_numpy(batch.tokens[:, PROMPT:].copy())
    presence = torch.full((batch.rows, 1), batch.args.get("presence_penalty", 0.0))
    frequency = torch.full((batch.rows, 1), batch.args.get("frequency_penalty", 0.0))

    def edit(logits: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(logits.shape, dtype=torch.long).scatter_add_(1, output, torch.ones_like(output))
        logits -= frequency * counts
        logits -= presence * (counts > 0)
        return logits

    return edit


def _dry(batch: Batch) -> Edit:
    """text-generation-webui's: goes back from every place that holds the last token."""

    def edit(logits: torch.Tensor) -> torch.Tensor:
        for row, tokens in enumerate(batch.tokens.tolist()):
            longest: dict[int, int] = {}
            for place in (batch.input_ids[row, :-1] == tokens[-1]).nonzero().flatten().tolist():
                length = 1
                while length <= place and tokens[place - length] == tokens[-1 - length]:
                    length += 1
                longest[tokens[place + 1]] = max(longest.get(tokens[place + 1], 0), length)
            for token, length in longest.items():
                if length >= 2:
                    logits[row, token] -= batch.args["dry_multiplier"] * 1.75 ** (length - 2)
        return logits

    return edit


def _xtc(batch: Batch) -> Edit:
    """text-generation-webui's: sorts, and looks at each next token."""

    def edit(logits: torch.Tensor) -> torch.Tensor:
        ordered, order = torch.sort(logits, descending=True)
        probability = ordered.softmax(dim=-1)
        removed = torch.zeros_like(probability, dtype=torch.bool)
        removed[:, :-1] = probability[:, 1:] >= batch.args["xtc_threshold"]
        return logits.masked_fill_(removed.scatter(1, order, removed), -math.inf)

    return edit


def _top_n_sigma(batch: Batch) -> Edit:
    def edit(logits: torch.Tensor) -> torch.Tensor:
        least = logits.amax(dim=-1, keepdim=True) - batch.args["top_n_sigma"] * logits.std(dim=-1, keepdim=True)
        return logits.masked_fill_(logits < least, -math.inf)

    return edit


def _sequences(random: np.random.Generator) -> list[list[int]]:
    """Eight, of one to three tokens."""
    return [random.integers(0, 400, 1 + at % 3).tolist() for at in range(8)]


_WORDS = _sequences(np.random.default_rng(1))
_EOS = list(EOS)
CONTESTS = (
    Contest(
        "SequenceBias",
        {"sequence_bias": [[word, 2.5] for word in _WORDS]},
        "Hugging Face",
        _hugging_face(lambda: hf.SequenceBiasLogitsProcessor([[word, 2.5] for word in _WORDS])),
    ),
    Contest("AllowedTokens", {"allowed_token_ids": list(range(100, 400))}, "vLLM's way", _masked_fill),
    Contest("BadWords", {"bad_words_token_ids": _WORDS}, "vLLM's way", _bad_words),
    Contest(
        "MinTokens",
        # More tokens than any run of calls generates.
        {"min_tokens": 2**40},
        "vLLM's way",
        _min_tokens,
        restores=False,
    ),
    Contest("MinP", {"min_p": 0.05}, "vLLM's way", _min_p),
    Contest(
        "RepetitionPenalty",
        {"repetition_penalty": 1.2},
        "Hugging Face",
        _hugging_face(lambda: hf.RepetitionPenaltyLogitsProcessor(1.2)),
    ),
    Contest("PresencePenalty", {"presence_penalty": 0.5}, "vLLM's way", _counted_penalty),
    Contest("FrequencyPenalty", {"frequency_penalty": 0.5}, "vLLM's way", _counted_penalty),
    Contest(
        "NoRepeatNGram",
        {"no_repeat_ngram_size": 2},
        "Hugging Face",
        _hugging_face(lambda: hf.NoRepeatNGramLogitsProcessor(2)),
    ),
    Contest("DRY", {"dry_multiplier": 0.8}, "text-generation-webui's way", _dry),
    Contest("XTC", {"xtc_probability": 1.0, "xtc_threshold": 0.05}, "text-generation-webui's way", _xtc),
    Contest("TypicalP", {"typical_p": 0.9}, "Hugging Face", _hugging_face(lambda: hf.TypicalLogitsWarper(0.9))),
    Contest("TopNSigma", {"top_n_sigma": 1.0}, "the paper's way", _top_n_sigma),
    Contest("EtaCutoff", {"eta_cutoff": 3e-4}, "Hugging Face", _hugging_face(lambda: hf.EtaLogitsWarper(3e-4))),
    Contest(
        "EpsilonCutoff", {"epsilon_cutoff": 3e-4}, "Hugging Face", _hugging_face(lambda: hf.EpsilonLogitsWarper(3e-4))
    ),
    Contest(
        "ExponentialLengthDecay",
        {"exponential_decay_length_penalty": [16, 1.01]},
        "Hugging Face",
        _hugging_face(lambda: hf.ExponentialDecayLengthPenalty((16, 1.01), _EOS, PROMPT)),
    ),
)


def sides(batch: Batch, contest: Contest) -> tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]:
    """Both sides' calls by name, and what comes before each of them unmeasured."""
    rival = contest.rival(batch)
    calls: dict[str, Callable[[], object]] = {"ours": batch.step, contest.against: lambda: rival(batch.torch_logits)}

    def go_on() -> None:
        # Before either side's call, so that both find the caches alike.
        if contest.restores:
            batch.restore()
        batch.go_on()

    return calls, dict.fromkeys(calls, go_on)


def require_same_result(batch: Batch, contest: Contest) -> None:
    """Raise RuntimeError if the other side computes something else."""
    theirs = contest.rival(batch)(batch.torch_logits).numpy().copy()
    batch.restore()
    ours = batch.step().numpy()
    cut = np.isneginf(ours)
    different = np.mean(cut != np.isneginf(theirs))
    both = ~cut & np.isfinite(theirs)
    if different > MAX_DIFFERENCE or not np.allclose(ours[both], theirs[both], rtol=1e-5, atol=1e-5):
        raise RuntimeError(f"{contest.name} and {contest.against} compute something different: {different:.2%} cut")
