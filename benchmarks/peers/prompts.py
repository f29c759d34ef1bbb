"""Long prompts that differ from their first word, so that no prefix cache helps."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from fastdeploy_lp.entrypoints.bench.serving import PROMPTS

WORDS = sorted(set(PROMPTS.split()))


def long_prompts(tokenizer_file: Path, tokens: int, count: int) -> list[str]:
    """Returns `count` prompts of about `tokens` tokens, the same in each run; no two begin alike."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    lengths = {word: len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) for word in WORDS}
    draw = random.Random(0)
    return [_prompt(f"List {number}:", lengths, tokens, draw) for number in range(1, count + 1)]


def _prompt(beginning: str, lengths: dict[str, int], tokens: int, draw: random.Random) -> str:
    words, length = [beginning], 0
    while length < tokens:
        words.append(draw.choice(WORDS))
        length += lengths[words[-1]]
    return " ".join(words)
