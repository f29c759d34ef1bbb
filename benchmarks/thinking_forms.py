"""Chats that think and then answer with JSON of a schema: the answers that are not valid.

A tiny random model writes anything at temperature 1.3; a processor writes the markers of reasoning, in tokenizations
and at places that differ from request to request. Every answer is parsed as the server parses it, and validated.
``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jsonschema import Draft202012Validator

from fastdeploy_lp import LLM, GuidedDecodingParams, SamplingParams
from fastdeploy_lp.engine.reasoning_parsers import find_reasoning_parser
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.model_tokenizer import model_tokenizer

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

TOGETHER = 250
Encode = Callable[[str], list[int]]
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"enum": [1, 22, 333]}}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {"s": {"type": "string", "maxLength": 6}},
        "required": ["s"],
        "additionalProperties": False,
    },
    {"enum": ["<think>", "</think>", "yes", None]},
    {"type": "string", "pattern": "^[a-f]{1,8}$"},
    {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"const": {"x": []}}]},
)


class WritesFirst(LogitsProcessor):
    """Writes the tokens `write` at the beginning of an output; the model continues it."""

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:  # noqa: ARG002 - contract
        self._next: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Finds the next token of each row."""
        self._next = []
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            write = share_inputs["logits_processors_args"][slot].get("write") or []
            step = int(share_inputs["step_idx"][slot, 0])
            self._next.append(write[step] if step < len(write) else None)

    def apply(self, logits: Tensor) -> Tensor:
        """Prefers these tokens."""
        for row, token in enumerate(self._next):
            if token is not None:
                logits[row, token] = 1e4
        return logits


def requests(encode: Encode, count: int, parser: str, seed: int) -> Iterator[tuple[dict[str, Any], SamplingParams]]:
    """Yields the schema and the parameters of each request."""
    choice = random.Random(seed)
    for number in range(count):
        schema = choice.choice(SCHEMAS)
        begin = "" if parser == "deepseek_r1" and choice.random() < 0.5 else choice.choice(["", "\n"]) + "<think>"
        thought = "".join(choice.choices(["a ", "<", "</think", "{", "</", "]", "é", '"'], k=choice.randrange(12)))
        text = f"{begin}{thought}</think>"
        # Some models do not reason about a question; the parser of the others takes all for reasoning.
        if parser == "qwen3" and choice.random() < 0.1:
            text = ""
        # Afterwards it would rather talk, or end.
        after = choice.choice(["Sure! ", " {}", "\n\n", "", "<think>"])
        params = SamplingParams(
            temperature=1.3,
            seed=number,
            max_tokens=160,
            guided_decoding=GuidedDecodingParams(json=schema),
            logits_processors={"WritesFirst": {"write": spelled(encode, text + after, choice)}},
        )
        yield schema, params


def spelled(encode: Encode, text: str, choice: random.Random) -> list[int]:
    """Returns a random tokenization of a text."""
    found: list[int] = []
    while text:
        size = choice.randrange(1, len(text) + 1)
        found += encode(text[:size])
        text = text[size:]
    return found


def answer_of(text: str, parser: str) -> str:
    """Returns the answer after the reasoning, as the server separates it."""
    made = find_reasoning_parser(parser)()
    return made.push(text).content + made.finish().content


def run(llm: LLM, encode: Encode, count: int, parser: str, seed: int) -> Counter[str]:
    """Returns how many answers were valid, cut by the limit of tokens, and invalid; prints the invalid ones."""
    ends: Counter[str] = Counter()
    asked = list(requests(encode, count, parser, seed))
    for begin in range(0, count, TOGETHER):
        part = asked[begin : begin + TOGETHER]
        messages = [[{"role": "user", "content": f"question {begin + number}"}] for number in range(len(part))]
        outputs = llm.chat(messages, [params for _, params in part], use_tqdm=False)
        for (schema, _), output in zip(part, outputs, strict=True):
            end = verdict(output.completions[0], schema, parser)
            ends[end] += 1
            if end == "invalid":
                print(f"invalid: {output.completions[0].text!r} for {json.dumps(schema)}", file=sys.stderr)
        print(f"{parser}: {begin + len(part)} of {count}: {dict(ends)}", file=sys.stderr, flush=True)
    return ends


def verdict(completion: Any, schema: Mapping[str, Any], parser: str) -> str:
    """Returns "valid", "invalid", or "cut" for an output that the limit of tokens ends."""
    if completion.finish_reason == "length":
        return "cut"
    try:
        value = json.loads(answer_of(completion.text, parser))
    except ValueError:
        return "invalid"
    return "valid" if Draft202012Validator(schema).is_valid(value) else "invalid"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="of both parsers together")
    parser.add_argument("--model", help="a directory; a tiny random model by default")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


def main() -> None:
    """Prints a line for each parser; exits with 1 after an invalid answer."""
    options = arguments()
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.tiny import write_tiny_checkpoint

    invalid = 0
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or str(write_tiny_checkpoint(Path(folder), context=1024))
        encode = partial(model_tokenizer(model).encode, add_special_tokens=False)
        for parser in ("qwen3", "deepseek_r1"):
            began = time.perf_counter()
            with LLM(model, logits_processors=[WritesFirst], reasoning_parser=parser, max_num_seqs=32) as llm:
                ends = run(llm, encode, options.requests // 2, parser, options.seed)
            seconds = time.perf_counter() - began
            print(f"{parser}: {ends['valid']} valid, {ends['invalid']} invalid, {ends['cut']} cut, {seconds:.0f} s")
            invalid += ends["invalid"]
    sys.exit(1 if invalid else 0)


if __name__ == "__main__":
    main()
