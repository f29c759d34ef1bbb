"""Arguments for a processor, drawn at random from the JSON schema of its `Params`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

SMALL = 16
WORDS = ("a", "the", "token", "Paris", " and", "0", "end.")
MAX_LENGTH = 3
TRIES_EACH = 40


def draw_arguments(
    model: type[BaseModel], count: int, *, vocab_size: int, seed: int, accepts: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Draws up to `count` different sets of arguments that fit the model's schema and that `accepts` accepts.

    Integers without bounds count as token ids. The schema does not show rules in validators, so draws are retried; the
    result may be empty.
    """
    schema = model.model_json_schema()
    drawer = _Drawer(schema, random.Random(seed), vocab_size)
    drawn: list[dict[str, Any]] = []
    for _ in range(TRIES_EACH * count):
        args = drawer.draw(schema)
        if args and args not in drawn and accepts(args):
            drawn.append(args)
        if len(drawn) == count:
            break
    return drawn


def integers_in(value: Any) -> Iterator[int]:
    """Yields every integer in the arguments, also those in keys of objects; token ids are among them."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from integers_in(int(key) if isinstance(key, str) and key.isdecimal() else key)
            yield from integers_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from integers_in(each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


class _Drawer:
    """Draws random values for JSON schemas in pydantic's form."""

    def __init__(self, root: Schema, source: random.Random, vocab_size: int) -> None:
        self._definitions: Schema = root.get("$defs", {})
        self._random = source
        self._vocab_size = vocab_size

    def draw(self, schema: Schema) -> Any:
        """Returns a random value; for a schema without a type, an integer."""
        if "$ref" in schema:
            return self.draw(self._definitions[schema["$ref"].rpartition("/")[2]])
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.draw(self._choose(schema[several]))
        kind = schema.get("type", "integer")
        draw: Callable[[Schema], Any] = getattr(self, f"_{kind}")
        return draw(schema)

    def _choose(self, alternatives: list[Schema]) -> Schema:
        """Returns a random alternative; seldom null, which equals no argument."""
        something = [each for each in alternatives if each.get("type") != "null"]
        return self._random.choice(alternatives if self._random.random() < 0.1 or not something else something)

    def _null(self, _: Schema) -> None:
        return None

    def _boolean(self, _: Schema) -> bool:
        return self._random.random() < 0.8

    def _integer(self, schema: Schema) -> int:
        low, high = self._bounds(schema, step=1)
        if low is None and high is None:
            return self._random.randrange(SMALL if self._random.random() < 0.3 else self._vocab_size)
        least = math.ceil(low if low is not None else (high or 0.0) - SMALL)
        if high is None:
            # Small values, so that lengths and counts take effect within a short output.
            return least + int(self._random.expovariate(0.3))
        return self._random.randint(least, math.floor(high))

    def _number(self, schema: Schema) -> float:
        low, high = self._bounds(schema, step=0)
        if low is None and high is None:
            return round(self._random.gauss(0.0, 5.0), 3)
        if low is None:
            return (high or 0.0) - self._random.expovariate(1.0)
        # From the open interval: either bound may be excluded.
        return low + (
            self._random.expovariate(1.0) if high is None else (high - low) * self._random.uniform(0.01, 0.99)
        )

    @staticmethod
    def _bounds(schema: Schema, step: int) -> tuple[float | None, float | None]:
        low, high = schema.get("minimum"), schema.get("maximum")
        if "exclusiveMinimum" in schema:
            low = schema["exclusiveMinimum"] + step
        if "exclusiveMaximum" in schema:
            high = schema["exclusiveMaximum"] - step
        return low, high

    def _string(self, schema: Schema) -> str:
        text = self._random.choice(WORDS)
        while len(text) < schema.get("minLength", 0):
            text += self._random.choice(WORDS)
        return text[: schema.get("maxLength")]

    def _array(self, schema: Schema) -> list[Any]:
        if "prefixItems" in schema:
            return [self.draw(each) for each in schema["prefixItems"]]
        values: list[Any] = []
        length = self._length(schema, "minItems", "maxItems")
        for _ in range(TRIES_EACH * length):
            value = self.draw(schema.get("items", {}))
            if not (schema.get("uniqueItems") and value in values):
                values.append(value)
            if len(values) == length:
                break
        return values

    def _object(self, schema: Schema) -> dict[str, Any]:
        required = schema.get("required", ())
        properties = schema.get("properties", {})
        chosen = [name for name in properties if name in required or self._random.random() < 0.7]
        drawn = {name: self.draw(properties[name]) for name in chosen}
        if not properties and isinstance(schema.get("additionalProperties", {}), dict):
            # The schema does not distinguish keys that are token ids from others.
            numbered = self._random.random() < 0.7
            for _ in range(self._length(schema, "minProperties", "maxProperties")):
                key = str(self._random.randrange(self._vocab_size)) if numbered else self._random.choice(WORDS)
                drawn[key] = self.draw(schema.get("additionalProperties", {}))
        return drawn

    def _length(self, schema: Schema, least: str, most: str) -> int:
        low = max(schema.get(least, 1), 1)
        return self._random.randint(low, max(low, min(schema.get(most, MAX_LENGTH), low + MAX_LENGTH)))
