"""Random JSON Schemas whose shortest texts are short, so that a small model comes to an end."""

from __future__ import annotations

from random import Random
from typing import Any

WORDS = ["name", "age", "city", "tags", "size", "color", "état", "größe", "名前", "is it?", "a.b", "x_1", "id", "notes"]


def random_schema(seed: int) -> dict[str, Any]:
    """The schema of a seed: an object, with definitions that it refers to."""
    random = Random(seed)
    defs = {name: _value(random, 1) for name in random.sample(["One", "Two", "Three"], random.randint(0, 2))}
    schema = _object(random, 3, list(defs))
    return {**schema, "$defs": defs} if defs else schema


def _object(random: Random, depth: int, defs: list[str]) -> dict[str, Any]:
    names = random.sample(WORDS, random.randint(1, 4))
    properties = {name: _value(random, depth - 1, defs) for name in names}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for name in names if random.random() < 0.7]
    if random.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _value(random: Random, depth: int, defs: list[str] | tuple[str, ...] = ()) -> dict[str, Any]:
    if defs and random.random() < 0.3:
        return {"$ref": f"#/$defs/{random.choice(defs)}"}
    kinds = [_string, _integer, _number, _enum, _const, _boolean, _pattern, _format, _any_of]
    if depth > 0 and random.random() < 0.5:
        return random.choice([_array, _tuple, _nested])(random, depth, list(defs))
    return random.choice(kinds)(random)


def _string(random: Random) -> dict[str, Any]:
    low = random.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + random.randint(0, 12)}


def _integer(random: Random) -> dict[str, Any]:
    low = random.randint(-1000, 1000)
    schema: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 500)}
    if random.random() < 0.3:
        schema = {"type": "integer", "minimum": 0, "maximum": 900, "multipleOf": random.choice([2, 5, 10, 50])}
    return schema


def _number(random: Random) -> dict[str, Any]:
    low = random.randint(-50, 50)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + random.randint(1, 9), "multipleOf": 0.25}


def _enum(random: Random) -> dict[str, Any]:
    return {"enum": random.sample(["red", "green", 'quo"te', "back\\slash", "ünïcode", 7, -1.5, True, None], 3)}


def _const(random: Random) -> dict[str, Any]:
    return {"const": random.choice(["fixed", 42, None, {"deep": [1, "two"]}, "line\nbreak"])}


def _boolean(random: Random) -> dict[str, Any]:
    return {"type": random.choice(["boolean", "null", ["boolean", "null"]])}


def _pattern(random: Random) -> dict[str, Any]:
    return {"type": "string", "pattern": random.choice(["^[A-Z]{2}-[0-9]{3}$", "^(yes|no|maybe)$", "^a+b?$|^c$"])}


def _format(random: Random) -> dict[str, Any]:
    return {"type": "string", "format": random.choice(["date", "time", "date-time", "ipv4", "uuid"])}


def _any_of(random: Random) -> dict[str, Any]:
    return {"anyOf": [_integer(random), _string(random), _boolean(random)]}


def _array(random: Random, depth: int, defs: list[str]) -> dict[str, Any]:
    low = random.randint(0, 2)
    items = _value(random, depth - 1, defs)
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + random.randint(0, 2)}


def _tuple(random: Random, depth: int, defs: list[str]) -> dict[str, Any]:
    items = [_value(random, depth - 1, defs) for _ in range(random.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _nested(random: Random, depth: int, defs: list[str]) -> dict[str, Any]:
    return _object(random, depth - 1, defs)
