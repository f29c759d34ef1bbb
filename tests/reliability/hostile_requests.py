"""Requests of a run beside hostile processors: healthy ones, and a deck of every way to be hostile."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

from soak_requests import WORDS
from support.hostile import DEADLY, HANG, RAISED, WRITES_GARBAGE, WRITES_NAN, WRITES_NOTHING_ELSE
from support.masks import BANNED_BY_PLUGIN, BANNED_BY_VLLM

MODES = (*RAISED, *DEADLY, HANG, WRITES_NAN, WRITES_NOTHING_ELSE, WRITES_GARBAGE)
# Every processor with each of its slow modes.
NUM_SLOW = 42
# Each costs the server seconds: a worker's end, or the time until a hang is broken off.
SLOW_MODES = (*DEADLY, HANG)
BATCH_LEVEL = {
    "Guarded": "hostile_guarded",
    "Opaque": "hostile_opaque",
    "VllmPaddle": "hostile_vllm_paddle",
    "VllmTorch": "hostile_vllm_torch",
}
BY_REQUEST = {"Adapter": "hostile_adapter", "Plugin": "hostile_plugin", "HuggingFace": "hostile_hugging_face"}
ARGUMENTS = BATCH_LEVEL | BY_REQUEST
NEED_TORCH = ("VllmTorch", "HuggingFace")
# Those that flat arguments reach.
FLAT = (*BATCH_LEVEL, "Adapter")
HAS_VALIDATION = FLAT
BIASED = (2 * BANNED_BY_PLUGIN, 2 * BANNED_BY_VLLM, 101, 103)
PROMPT = "the quick brown fox"
MIN_TOKENS, MAX_TOKENS = 10, 60
LOGIT_BIAS = "LogitBiasLogitsProcessor"


@dataclass(frozen=True)
class Hostility:
    """One way to be hostile: the processor, its fault, and how the request selects it."""

    processor: str
    mode: str
    where: str
    flat: bool

    @property
    def may_succeed(self) -> bool:
        """Whether its answer may be whole: one that writes garbage is answered with garbage."""
        return self.mode == WRITES_GARBAGE

    def body(self, source: random.Random, prompt_tokens: int) -> dict[str, Any]:
        """A request that cannot end before its fault has struck; `prompt_tokens` is the length of PROMPT's prompt."""
        tokens = source.randint(MIN_TOKENS, MAX_TOKENS)
        at = 0 if self.where in ("build", "validate") else source.randrange(tokens)
        if self.processor == "HuggingFace":
            at += prompt_tokens
        args = {ARGUMENTS[self.processor]: {"mode": self.mode, "at": at, "where": self.where}}
        chosen: dict[str, Any] = {"logits_processors_args": args} if self.flat else self._named(source, args)
        stream = source.random() < 0.5
        return _chat(PROMPT, tokens, temperature=0, n=source.choice((1, 1, 1, 2)), stream=stream) | chosen

    def _named(self, source: random.Random, args: dict[str, Any]) -> dict[str, Any]:
        if source.random() < 0.5:
            return {"logits_processors": {self.processor: args}}
        # In a list, after a builtin and before the mandatory masks, as they are declared.
        return {
            "logits_processors": [{"name": LOGIT_BIAS, "params": _bias()}, {"name": self.processor, "params": args}]
        }


def all_hostilities() -> list[Hostility]:
    """Every processor, mode, place and way of selection that a chain promises to contain."""
    found = []
    for processor, mode, flat in itertools.product(ARGUMENTS, MODES, (False, True)):
        if (flat and processor not in FLAT) or (flat and writes_to_neighbours(processor, mode)):
            continue
        found += [Hostility(processor, mode, where, flat) for where in _places(processor, mode)]
    return found


def writes_to_neighbours(processor: str, mode: str) -> bool:
    """Whether a flat request of this kind writes to rows of others that the processor was given to change.

    A batch-level processor without `only_with_args` is given every row of its group. By name it has a group of its own.
    """
    return mode == WRITES_GARBAGE and processor in BATCH_LEVEL and processor != "Guarded"


def _places(processor: str, mode: str) -> list[str]:
    raises, ends = mode in RAISED, mode in DEADLY
    places = ["step"]
    if processor in BATCH_LEVEL and (raises or ends or mode == HANG):
        places.append("state")
    if processor in BY_REQUEST and (raises or ends or mode == HANG):
        places.append("build")
    if processor in HAS_VALIDATION and raises:
        places.append("validate")
    return places


def deck(count: int, seed: int, *, slow: int, with_torch: bool = True) -> list[Hostility]:
    """`count` hostilities in random order, `slow` of which cost seconds; none repeats before all were drawn."""
    source = random.Random(seed)
    every = [each for each in all_hostilities() if with_torch or each.processor not in NEED_TORCH]
    costly = [each for each in every if each.mode in SLOW_MODES]
    quick = [each for each in every if each.mode not in SLOW_MODES]
    found = _covering(costly, min(slow, count), source)
    found += _covering(quick, count - len(found), source)
    source.shuffle(found)
    return found


def _covering(every: list[Hostility], count: int, source: random.Random) -> list[Hostility]:
    """Random ones: first one of each processor, mode and way of selection in turn, then the rest."""
    source.shuffle(every)
    first = {(each.processor, each.mode, each.flat and each.mode not in SLOW_MODES): each for each in every}
    # Sorted by the number of times that a mode, and a processor, are there already.
    ordered: list[Hostility] = []
    seen: dict[str, int] = {}
    left = list(first.values())
    while left:
        best = min(left, key=lambda each: (seen.get(each.mode, 0), seen.get(each.processor, 0)))
        left.remove(best)
        ordered.append(best)
        for key in (best.mode, best.processor):
            seen[key] = seen.get(key, 0) + 1
    ordered += [each for each in every if each not in ordered]
    return [ordered[place % len(ordered)] for place in range(count)]


def healthy_bodies(count: int, seed: int) -> list[dict[str, Any]]:
    """Requests of many kinds, whose answers do not depend on when they run; none uses a hostile processor."""
    source = random.Random(seed)
    return [_healthy_body(source, place) for place in range(count)]


def _healthy_body(source: random.Random, place: int) -> dict[str, Any]:
    prompt = " ".join(source.choices(WORDS, k=source.randint(1, 12)))
    body = _chat(prompt, source.randint(MIN_TOKENS, MAX_TOKENS), temperature=0, n=source.choice((1, 1, 2)))
    if source.random() < 0.6:
        body |= {"temperature": source.uniform(0.3, 1.5), "top_p": 0.95, "seed": source.randrange(2**31)}
    if source.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": source.randint(0, 3)}
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"logit_bias": _bias()["logit_bias"]},
        {"logits_processors_args": _bias()},
        {"logits_processors": {LOGIT_BIAS: _bias()}},
        {"logits_processors": [{"name": "Tilt", "params": {}}, {"name": LOGIT_BIAS, "params": _bias()}]},
        {"logits_processors": [{"name": LOGIT_BIAS, "params": _bias()}]},
        {"guided_regex": "[a-z]{4,12}", "ignore_eos": False},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    )
    return body | kinds[place % len(kinds)]


def _bias() -> dict[str, Any]:
    """For tokens of which the mandatory masks ban the first two."""
    return {"logit_bias": {str(token): 3.0 for token in BIASED}}


def _chat(prompt: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    shared = {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    return {**shared, **fields}
