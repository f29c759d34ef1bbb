"""Banned phrases: texts of many streamed answers that contain one, and what 32 answers without a hit cost.

The phrases are taken from answers of the same model, in random casing, so that most answers would contain one. Every
prefix of every stream is searched. The cost is measured with phrases that no answer contains, in runs that alternate
with runs without. ``benchmarks/README.md`` explains the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from typing import Any

from fastdeploy_lp import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from fastdeploy_lp.engine.errors import RequestFailedError

NAME = "PhraseBanLogitsProcessor"
ASKS = ("Write a sentence about", "Describe", "Name three facts about", "What do you think of", "Tell me a story about")
THINGS = ("a dog", "Paris", "the sea", "winter", "music", "a river", "bread", "the moon", "chess", "a garden", "trains")
MOODS = ("", " in one line", " for children", " as a poem", " like a teacher", " in simple words", " in detail", " now")
ROWS = 32


@dataclass
class Leaks:
    """Streamed answers, and those with a phrase in any prefix of the text. met: answers that had one without a ban."""

    outputs: int = 0
    chunks: int = 0
    leaks: int = 0
    failed: int = 0
    met: int = 0
    rewinds: int = 0
    examples: list[str] = field(default_factory=list)


def prompts(count: int) -> list[Any]:
    """Returns conversations; after 440 the same ones again, for another seed."""
    combined = [f"{ask} {thing}{mood}." for ask, thing, mood in product(ASKS, THINGS, MOODS)]
    return [[{"role": "user", "content": combined[index % len(combined)]}] for index in range(count)]


def phrases_of(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Returns the commonest words and pairs of words of the texts that are not everywhere, in random casing.

    Texts of a model with random weights have few words: then pieces of three to six characters as well.
    """
    found: Counter[str] = Counter()
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        found.update({word for word in words if len(word) > 5})
        found.update({f"{one} {other}" for one, other in pairwise(words) if len(one + other) > 7})
    source = random.Random(seed)
    if len(found) < count:
        starts = ((text, source.randrange(len(text) - 5)) for text in texts for _ in range(8) if len(text) > 5)
        found.update(text[start : start + source.randint(3, 6)].lower() for text, start in starts)
    chosen = [phrase for phrase, times in found.most_common() if times <= max(2, len(texts) // 8)][:count]
    return ["".join(source.choice((str.upper, str.lower))(each) for each in phrase) for phrase in chosen]


def contains(text: str, phrases: Sequence[str]) -> bool:
    """Returns True if a text contains a phrase in any casing."""
    folded = text.casefold()
    return any(phrase in folded for phrase in phrases)


async def streamed(
    llm: AsyncLLM, count: int, phrases: Sequence[str], args: argparse.Namespace
) -> tuple[Leaks, list[str]]:
    """Streams answers, with the phrases banned, and searches each prefix; returns the whole texts as well."""
    found, texts, waiting = Leaks(), [], asyncio.Semaphore(2 * ROWS)
    folded = [phrase.casefold() for phrase in phrases]

    async def one(index: int, prompt: Any) -> None:
        params = SamplingParams(
            temperature=args.temperature,
            seed=index,
            max_tokens=args.max_tokens,
            logits_processors={NAME: {"banned_phrases": list(phrases)}} if phrases else {},
            output_kind=RequestOutputKind.DELTA,
        )
        text = ""
        async with waiting:
            try:
                async for output in llm.chat(prompt, params):
                    text += output.outputs.text
                    found.chunks += 1
                    # A phrase of a prefix is in every longer one, too.
                    if folded and contains(text, folded):
                        found.leaks += 1
                        found.examples.append(text)
                        break
            except RequestFailedError:
                found.failed += 1
        found.outputs += 1
        texts.append(text)
        if found.outputs % 200 == 0:
            print(f"{found.outputs} answers, {found.leaks} leaks", file=sys.stderr, flush=True)

    await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts(count))))
    return found, texts


async def leaks(args: argparse.Namespace) -> tuple[Leaks, list[str]]:
    """Returns the leaks of many answers, and the phrases."""
    quantization = args.quantization or None
    llm = AsyncLLM(args.model, logits_processors=[NAME], max_num_seqs=ROWS, quantization=quantization)
    try:
        await llm.start()
        _, plain = await streamed(llm, args.sample, (), args)
        phrases = phrases_of(plain, args.phrases)
        found, _ = await streamed(llm, args.outputs, phrases, args)
        found.met = sum(contains(text, [phrase.casefold() for phrase in phrases]) for text in plain)
        (card,) = llm.logits_processors
        found.rewinds = card.stats.rewinds
    finally:
        await llm.shutdown()
    return found, phrases


def cost(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of 32 answers with phrases that none contains, relative to those without, best of several."""
    source = random.Random(1)
    never = ["".join(source.choices("qxzjvkw", k=source.randint(8, 24))) for _ in range(args.phrases)]
    settings = {"temperature": 0, "max_tokens": args.cost_tokens, "ignore_eos": True}
    ways = {"without": {}, "with": {NAME: {"banned_phrases": never}}}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    quantization = args.quantization or None
    with LLM(model=args.model, logits_processors=[NAME], max_num_seqs=ROWS, quantization=quantization) as llm:
        for _ in range(args.repeats + 1):
            for way, processors in ways.items():
                params = SamplingParams(logits_processors=processors, **settings)
                began = time.perf_counter()
                llm.chat(prompts(ROWS), params, use_tqdm=False)
                seconds[way].append(time.perf_counter() - began)
        (card,) = llm.logits_processors
        spent = card.stats.seconds / (args.repeats + 1)
    best = {way: min(times[1:]) for way, times in seconds.items()}
    steps = args.cost_tokens + 1
    return {
        "rows": ROWS,
        "phrases": args.phrases,
        "seconds_without": best["without"],
        "seconds_with": best["with"],
        "cost": best["with"] / best["without"] - 1,
        "processor_ms_a_step": 1e3 * spent / steps,
        "processor_share": spent / best["with"],
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Returns both results."""
    costs = cost(args)
    print(costs, file=sys.stderr, flush=True)
    found, phrases = asyncio.run(leaks(args))
    return {"model": args.model, "phrases": len(phrases), "leaks": asdict(found), "cost": costs}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options; `--smoke` changes defaults only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few answers")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="w8a8", help='"" for none (default: w8a8)')
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-tokens", type=int, default=32, help="of each streamed answer (default: 32)")
    parser.add_argument("--outputs", type=int, help="streamed answers (default: 2000)")
    parser.add_argument("--sample", type=int, help="answers that the phrases are taken from (default: 440)")
    parser.add_argument("--phrases", type=int, default=500, help="number of phrases, at most 1000 (default: 500)")
    parser.add_argument("--cost-tokens", type=int, help="tokens of each answer of the cost (default: 64)")
    parser.add_argument("--repeats", type=int, help="runs of each way after the first (default: 3)")
    parser.add_argument("--json", help="file for the result")
    args = parser.parse_args(arguments)
    args.outputs = args.outputs or (16 if args.smoke else 2000)
    args.sample = args.sample or (16 if args.smoke else 440)
    args.cost_tokens = args.cost_tokens or (8 if args.smoke else 64)
    args.repeats = args.repeats or (1 if args.smoke else 3)
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
