"""Speed of speculative decoding, beside the same engine without it.

    python benchmarks/speculation.py                   # exit status 0 only if tokens are equal and the musts hold
    python benchmarks/speculation.py --smoke           # seconds; fails only if tokens differ

Both engines run in turns. Every answer must have the same tokens in both; the fastest of several turns counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.outputs import NO_DRAFTS, RequestOutput

TEXT = (
    "The lighthouse stands on a rock two miles from the harbour. It was built in 1871 by a company of forty men, who "
    "carried every stone over the sea in small boats. The lamp burned oil until 1923, when the first electric light "
    "was installed. Today nobody lives there, but a boat brings visitors every Sunday in summer, if the sea is calm."
)
CODE = (
    "def price(items, tax):\n    total = 0\n    for item in items:\n        total = total + item.price * item.count\n"
    "        if item.discount:\n            total = total - item.discount\n    total = total + total * tax\n"
    "    return total\n"
)
PERSON = {
    "type": "object",
    "properties": {
        "family_name": {"type": "string", "maxLength": 12},
        "given_name": {"type": "string", "maxLength": 12},
        "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 2020},
        "preferred_language": {"enum": ["English", "German", "French"]},
        "is_registered_customer": {"type": "boolean"},
    },
    "required": ["family_name", "given_name", "year_of_birth", "preferred_language", "is_registered_customer"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Task:
    """A prompt, its parameters, and the ratios that it must reach by number of requests."""

    name: str
    prompt: str
    params: dict[str, Any] = field(default_factory=dict)
    musts: dict[int, float] = field(default_factory=dict)


TASKS = (
    Task("quote", f"Repeat this text exactly, with no changes:\n\n{TEXT}", musts={1: 1.8, 8: 1.4}),
    Task("edit", f"Rename total to amount:\n\n{CODE}", {"prediction": CODE}, {1: 1.8, 8: 1.4}),
    Task("schema", "Invent a customer.", {"guided_decoding": GuidedDecodingParams(json=PERSON)}, {1: 1.5}),
    Task("chat", "Tell me a story about a fox who lives near a river.", musts={1: 0.98, 8: 0.98, 32: 0.98}),
)


@dataclass(frozen=True)
class Run:
    """Answers of one engine, and their tokens per second."""

    tokens: list[list[int]]
    per_second: float
    accepted: float


def run(llm: LLM, task: Task, count: int, max_tokens: int) -> Run:
    """Answers `count` requests at once; their greedy outputs have full length unless their form ends them."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **task.params)
    began = time.perf_counter()
    outputs: Sequence[RequestOutput] = llm.chat(
        [[{"role": "user", "content": task.prompt}]] * count, params, use_tqdm=False
    )
    seconds = time.perf_counter() - began
    tokens = [list(output.outputs.token_ids) for output in outputs]
    drafted = sum((output.drafted for output in outputs), NO_DRAFTS)
    return Run(tokens, sum(map(len, tokens)) / seconds, drafted.accepted / max(drafted.verified, 1))


def compared(engines: Sequence[LLM], task: Task, count: int, args: argparse.Namespace) -> dict[str, Any]:
    """Runs a task on both engines in turns; the second one drafts."""
    runs: list[list[Run]] = [[], []]
    for _ in range(args.turns):
        for place, engine in enumerate(engines):
            runs[place].append(run(engine, task, count, args.max_tokens))
    plain, drafted = (max(each, key=lambda one: one.per_second) for each in runs)
    ratio = drafted.per_second / plain.per_second
    return {
        "task": task.name,
        "requests": count,
        "plain": round(plain.per_second, 1),
        "drafted": round(drafted.per_second, 1),
        "ratio": round(ratio, 2),
        "accepted": round(drafted.accepted, 2),
        "must": task.musts.get(count),
        "same": all(one.tokens == plain.tokens for each in runs for one in each),
    }


def main() -> int:
    """The exit status."""
    args = arguments()
    options: dict[str, Any] = {"quantization": args.quantization, "max_num_seqs": max(args.requests)}
    # A long answer to a prompt that was computed before would only show the prefix cache.
    options |= {"model": args.model, "enable_prefix_caching": False}
    engines = [LLM(**options), LLM(**options, speculative_config=args.speculative_config)]
    results = [compared(engines, task, count, args) for task in TASKS for count in args.requests]
    print("| task | requests | tokens/s | with drafts | ratio | must | accepted | same tokens |\n|---|" + "---|" * 7)
    for each in results:
        names = ("task", "requests", "plain", "drafted", "ratio", "must", "accepted", "same")
        print("|" + "|".join(f" {each[name]} " for name in names) + "|")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    same = all(each["same"] for each in results)
    fast = all(each["ratio"] >= (each["must"] or 0.0) for each in results)
    return 0 if same and (fast or args.smoke) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="w8a8", type=lambda name: None if name == "none" else name)
    parser.add_argument("--speculative-config", default='{"method": "auto"}')
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.requests, args.max_tokens, args.turns = [1, 2], 12, 1
    return args


if __name__ == "__main__":
    sys.exit(main())
