"""Random ways of a request to choose its processors, most of them about mandatory ones, some of them wrong."""

from __future__ import annotations

from random import Random
from typing import Any

from support.masks import MANDATORY

OTHERS = ("Unbans", "early", "LogitBiasLogitsProcessor", "late", "SequenceBiasLogitsProcessor")
NAMES = (*MANDATORY, *OTHERS)
# Names that are not declared so, and what is no name at all.
STRANGE = ("rowmask", "RowMask ", "support.masks:RowMask", "", "*", "plugin_mask=RowMask")
FLAT_FIELDS = ("logits_processors_args", "vllm_xargs")


def random_selection(rng: Random, vocab_size: int) -> dict[str, Any]:
    """Fields of a request, as JSON has them."""
    kind = rng.choice(["flat", "object", "list", "list", "list", "empty", "none"])
    fields: dict[str, Any] = {}
    if kind == "flat":
        fields = _flat(rng, vocab_size)
    elif kind == "object":
        fields["logits_processors"] = {name: _params(rng, name, vocab_size) for name in _names(rng)}
    elif kind == "list":
        fields["logits_processors"] = [_entry(rng, name, vocab_size) for name in _names(rng)]
    elif kind == "empty":
        fields[rng.choice(["logits_processors", *FLAT_FIELDS])] = {}
        if rng.random() < 0.5:
            fields["logits_processors"] = rng.choice([{}, [], None])
    if rng.random() < 0.15:
        fields["logits_processors_shadow"] = rng.sample(NAMES, rng.randint(0, 3))
    if rng.random() < 0.1:
        fields["logit_bias"] = _biases(rng, vocab_size)
    return fields


def _names(rng: Random) -> list[str]:
    names = rng.sample(OTHERS, rng.randint(0, len(OTHERS))) + rng.sample(MANDATORY, rng.choice([0, 0, 1, 3]))
    if rng.random() < 0.5:
        # As declared, so that most of them are right.
        order = ("Unbans", "early", "RowMask", OTHERS[2], "plugin_mask", "late", "VllmMask", OTHERS[4])
        names.sort(key=order.index)
    else:
        rng.shuffle(names)
    if rng.random() < 0.05:
        names.insert(rng.randint(0, len(names)), rng.choice([*STRANGE, *MANDATORY]))
    return names


def _entry(rng: Random, name: str, vocab_size: int) -> Any:
    entry: dict[str, Any] = {"name": name}
    if rng.random() < 0.6:
        entry["params"] = _params(rng, name, vocab_size)
    if rng.random() < 0.08:
        entry["shadow"] = rng.choice([True, True, False, None])
    return entry


def _params(rng: Random, name: str, vocab_size: int) -> Any:
    if rng.random() < 0.03:
        return rng.choice([None, [], "off", {"enabled": False}, {"mandatory": False}])
    if name == "plugin_mask":
        return rng.choice([{}, {"also": rng.randrange(vocab_size)}])
    if name == "SequenceBiasLogitsProcessor":
        return {"sequence_bias": [[[rng.randrange(vocab_size)], 1e9]]}
    if name in ("Unbans", "RowMask", "VllmMask"):
        return {}
    return {} if rng.random() < 0.2 else {"logit_bias": _biases(rng, vocab_size)}


def _flat(rng: Random, vocab_size: int) -> dict[str, Any]:
    args: dict[str, Any] = {"logit_bias": _biases(rng, vocab_size)}
    if rng.random() < 0.3:
        args["sequence_bias"] = [[[rng.randrange(vocab_size)], 1e9]]
    if rng.random() < 0.2:
        args[rng.choice(["also", "_step", "mandatory", "RowMask"])] = rng.choice([1, None, False])
    return {rng.choice(FLAT_FIELDS): args}


def _biases(rng: Random, vocab_size: int) -> dict[str, float]:
    return {str(rng.randrange(vocab_size)): rng.choice([1e9, 100.0, -100.0]) for _ in range(rng.randint(1, 4))}
