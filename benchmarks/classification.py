"""Classification in one step, beside the same model writing the label: seconds for a list of texts, and agreement.

Writing is measured in two ways: free text, which ends with the model's end token or at a limit and may name a label
anywhere, and an answer restricted to the labels. The labels of one step are compared with the log probabilities of the
labels' first tokens as prompt log probabilities report them. ``benchmarks/README.md`` explains the numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from typing import Any

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.request.outputs import RequestOutput

ONE_STEP, CHOICE = "ClassProbabilitiesLogitsProcessor", "MultipleChoiceLogitsProcessor"
LABELS = ("positive", "negative")
QUESTION = "Is this review positive or negative? Review: {text}"
PLACES = ("hotel", "restaurant", "museum", "cinema", "bakery", "garage", "library", "clinic", "market", "park")
PARTS = ("staff", "rooms", "prices", "location", "opening hours", "service", "building", "website", "parking", "music")
OPINIONS = ("were great", "were awful", "made me smile", "ruined my day", "could not be better")


@dataclass(frozen=True)
class Timed:
    """One way to label texts. tokens: generated tokens. named: texts whose answer names one label."""

    way: str
    texts: int
    seconds: float
    tokens: int
    named: int

    @property
    def per_text(self) -> float:
        """Seconds a text."""
        return self.seconds / self.texts


def texts(count: int) -> list[str]:
    """Returns distinct short reviews."""
    combined = product(PLACES, PARTS, OPINIONS)
    return [f"The {part} of this {place} {opinion}." for place, part, opinion in islice(combined, count)]


def measured(way: str, ask: Callable[[], list[RequestOutput]], label: Callable[[Any], str | None]) -> tuple[Timed, Any]:
    """Returns the time of `ask`, and the label of each answer."""
    began = time.perf_counter()
    answers = ask()
    seconds = time.perf_counter() - began
    labels = [label(answer.outputs) for answer in answers]
    tokens = sum(len(answer.outputs.token_ids) for answer in answers)
    return Timed(way, len(answers), seconds, tokens, sum(each is not None for each in labels)), labels


def named_in(text: str) -> str | None:
    """Returns the only label that a text names."""
    found = [label for label in LABELS if label in text.lower()]
    return found[0] if len(found) == 1 else None


def most_likely(output: Any) -> str | None:
    """Returns the label that one step has found."""
    (value,) = output.logits_processors_outputs[ONE_STEP]
    label: str | None = value["label"]
    return label


def engine(args: argparse.Namespace) -> LLM:
    """Returns a new engine with both processors."""
    processors = [ONE_STEP, CHOICE]
    return LLM(
        model=args.model,
        logits_processors=processors,
        max_num_seqs=args.max_num_seqs,
        quantization=args.quantization,
    )


def expected(llm: LLM, prompts: Sequence[Any]) -> list[str]:
    """Returns the label whose first tokens have the highest probability, from prompt log probabilities."""
    written = [(label, text) for label in LABELS for text in (label, f" {label}")]
    once = SamplingParams(max_tokens=1)
    encoded = llm.generate([text for _, text in written], once, use_tqdm=False)
    forms = [(label, answer.prompt_token_ids[0]) for (label, _), answer in zip(written, encoded, strict=True)]
    settings = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    ids = [answer.prompt_token_ids for answer in llm.chat(prompts, once, use_tqdm=False)]
    asked = [{"prompt_token_ids": [*each, token]} for each in ids for _, token in forms]
    answers = llm.generate(asked, settings, use_tqdm=False)
    labels = []
    for start in range(0, len(answers), len(forms)):
        shares = dict.fromkeys(LABELS, 0.0)
        for (label, token), answer in zip(forms, answers[start : start + len(forms)], strict=True):
            last = answer.prompt_logprobs[-1] if answer.prompt_logprobs else None
            if last is None:
                raise RuntimeError("a prompt has no log probabilities")
            shares[label] += math.exp(last[token].logprob)
        labels.append(max(shares, key=shares.__getitem__))
    return labels


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the times of the three ways, and the agreement."""
    found = texts(args.texts)
    prompts: list[Any] = [[{"role": "user", "content": QUESTION.format(text=text)}] for text in found]

    def timed(
        way: str, asked: Sequence[Any], label: Callable[[Any], str | None], **processors: Any
    ) -> tuple[Timed, list[str | None]]:
        params = SamplingParams(temperature=0, max_tokens=args.max_tokens, logits_processors_args=processors or None)
        # A new engine, whose prefix cache has only what requests of every kind share.
        with engine(args) as llm:
            llm.chat(prompts[:1], SamplingParams(max_tokens=4), use_tqdm=False)
            found = measured(way, lambda: llm.chat(asked, params, use_tqdm=False), label)
            print(found[0], file=sys.stderr, flush=True)
            return found

    step, labels = timed("one step", prompts, most_likely, class_labels=list(LABELS))
    choice, _ = timed("a label", prompts, lambda each: named_in(each.text), choices=list(LABELS))
    free, _ = timed("free text", prompts[: args.written], lambda each: named_in(each.text))
    with engine(args) as llm:
        checked = expected(llm, prompts[: args.checked])
    agreeing = sum(one == other for one, other in zip(labels, checked, strict=False))
    return {
        "model": args.model,
        "texts": len(prompts),
        "ways": [asdict(each) for each in (step, choice, free)],
        "faster_than_a_label": choice.per_text / step.per_text,
        "faster_than_free_text": free.per_text / step.per_text,
        "checked": len(checked),
        "agreeing": agreeing,
    }


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options; `--smoke` changes defaults only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few texts")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="w8a8")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64, help="limit of written answers (default: 64)")
    parser.add_argument("--texts", type=int, help="number of texts, at most 500 (default: 500)")
    parser.add_argument("--checked", type=int, help="texts whose label is compared (default: 50)")
    parser.add_argument("--json", help="file for the result")
    parser.add_argument("--written", type=int, help="texts that free text is written for (default: 100)")
    args = parser.parse_args(arguments)
    args.texts = args.texts or (8 if args.smoke else 500)
    args.written = args.written or min(args.texts, 100)
    args.checked = args.checked or (4 if args.smoke else 50)
    return args


def main() -> None:
    """Prints the result as JSON."""
    args = parse_arguments()
    result = json.dumps(run(args), indent=2)
    print(result)
    if args.json:
        with open(args.json, "w") as file:
            file.write(result + "\n")


if __name__ == "__main__":
    main()
