"""Which fields of an API's bodies there are, and which ones a value has, by `/openapi.json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The schema's name of an object, and the name of one of its fields.
Field = tuple[str, str]


def operations(document: dict[str, Any]) -> set[str]:
    """As "POST /v1/completions"."""
    return {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}


def body_schemas(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By operation, of those that have a body."""
    return {
        f"{method.upper()} {path}": operation["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }


def all_fields(document: dict[str, Any], schema: dict[str, Any], seen: frozenset[str] = frozenset()) -> set[Field]:
    """Every field of every object that a value of this schema may hold."""
    found: set[Field] = set()
    name, resolved = _resolved(document, schema)
    if name in seen:
        return found
    if name is not None:
        seen |= {name}
        found |= {(name, field) for field in resolved.get("properties", {})}
    for inner in _inner(resolved):
        found |= all_fields(document, inner, seen)
    return found


def fields_of(document: dict[str, Any], schema: dict[str, Any], value: Any) -> Iterator[Field]:
    """The fields that a value has; of a union, those of every member that knows them."""
    name, resolved = _resolved(document, schema)
    for member in (*resolved.get("anyOf", ()), *resolved.get("oneOf", ())):
        yield from fields_of(document, member, value)
    if isinstance(value, list) and "items" in resolved:
        for each in value:
            yield from fields_of(document, resolved["items"], each)
    if isinstance(value, dict):
        for field, inner in resolved.get("properties", {}).items():
            if field in value:
                yield (name or "", field)
                yield from fields_of(document, inner, value[field])


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    if "$ref" not in schema:
        return None, schema
    name = schema["$ref"].rpartition("/")[2]
    return name, document["components"]["schemas"][name]


def _inner(schema: dict[str, Any]) -> list[dict[str, Any]]:
    items = [schema["items"]] if "items" in schema else []
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *items, *schema.get("properties", {}).values()]
