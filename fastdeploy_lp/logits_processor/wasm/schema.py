"""Pydantic models from the JSON Schemas that modules declare for their arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, create_model

from fastdeploy_lp.logits_processor.token_arguments import TOKEN_FORMAT, TokenId
from fastdeploy_lp.logits_processor.wasm.errors import WasmError

MAX_BYTES = 16 * 1024
MAX_DEPTH = 6
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
_BOUNDS = {
    "integer": {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"},
    "number": {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"},
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "object": {"minProperties": "min_length", "maxProperties": "max_length"},
}
_OTHERS = {
    "array": {"items"},
    "object": {"properties", "required", "additionalProperties"},
    "integer": {"format"},
}
_PLAIN: dict[str, Any] = {
    "integer": StrictInt,
    # Takes integers, too.
    "number": StrictFloat,
    "string": StrictStr,
    "boolean": StrictBool,
    "null": None,
}


def model_of(name: str, schema: Any) -> type[BaseModel]:
    """Returns the model of an object with these properties; unknown ones are refused.

    Supports types, bounds, `enum`, `const`, `items`, `properties`, `required`, `additionalProperties`, `default` and
    `"format": "token-id"`. Raises WasmError for any other keyword, which would be ignored silently.
    """
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise WasmError("parameters: must be a JSON Schema of an object")
    if len(json.dumps(schema)) > MAX_BYTES:
        raise WasmError(f"parameters: a schema of more than {MAX_BYTES} bytes")
    return _model(name, {**schema, "additionalProperties": False}, "parameters", 0)


def _model(name: str, schema: Mapping[str, Any], path: str, depth: int) -> type[BaseModel]:
    _require_known(schema, "object", path)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise WasmError(f"{path}: properties must be an object, and required a list")
    unknown = [each for each in required if each not in properties]
    if unknown:
        raise WasmError(f"{path}.required: {unknown[0]!r} is no property")
    fields: dict[str, Any] = {}
    for place, (key, inner) in enumerate(properties.items()):
        kind = _kind(inner, f"{path}.{key}", depth + 1)
        notes: dict[str, Any] = {note: str(inner[note]) for note in ("title", "description") if note in inner}
        if key in required:
            default: Any = Field(alias=key, **notes)
        elif "default" in inner:
            default = Field(inner["default"], alias=key, validate_default=True, **notes)
        else:
            default, kind = Field(None, alias=key, **notes), kind | None
        # Any text may be a property's name, but not a field's.
        fields[f"property_{place}"] = (kind, default)
    title = schema.get("title", name)
    config = ConfigDict(extra="forbid", title=str(title), protected_namespaces=())
    try:
        model: type[BaseModel] = create_model("Parameters", __config__=config, **fields)
        return model
    except (TypeError, ValueError) as error:
        raise WasmError(f"{path}: {' '.join(str(error).split())}") from None


def _kind(schema: Any, path: str, depth: int) -> Any:
    """Returns the type of a value."""
    if depth > MAX_DEPTH:
        raise WasmError(f"{path}: nested more than {MAX_DEPTH} levels deep")
    if not isinstance(schema, Mapping):
        raise WasmError(f"{path}: must be an object with a type")
    if "enum" in schema or "const" in schema:
        return _choice(schema, path)
    named = schema.get("type")
    if isinstance(named, list):
        kinds = [_kind({**schema, "type": each}, path, depth) for each in named if each != "null"]
        if len(kinds) != 1:
            raise WasmError(f"{path}.type: may be one type, or a list of one type and null")
        return kinds[0] | None if "null" in named else kinds[0]
    if named not in (*_PLAIN, "array", "object"):
        raise WasmError(f"{path}.type: {named!r} is none of {', '.join((*_PLAIN, 'array', 'object'))}")
    _require_known(schema, named, path)
    if named == "object":
        return _object(schema, path, depth)
    if named == "array":
        inner = _kind(schema["items"], f"{path}.items", depth + 1) if "items" in schema else Any
        kind: Any = list[inner]  # type: ignore[valid-type]
    elif schema.get("format") == TOKEN_FORMAT["format"]:
        kind = TokenId
    elif "format" in schema:
        raise WasmError(f"{path}.format: {schema['format']!r} is not supported; token-id is")
    else:
        kind = _PLAIN[named]
    return _bounded(kind, schema, named, path)


def _object(schema: Mapping[str, Any], path: str, depth: int) -> Any:
    more = schema.get("additionalProperties", True)
    if schema.get("properties"):
        if more is not False:
            raise WasmError(f"{path}.additionalProperties: must be false beside properties")
        return _model("Object", schema, path, depth)
    inner = _kind(more, f"{path}.additionalProperties", depth + 1) if isinstance(more, Mapping) else Any
    return _bounded(dict[StrictStr, inner], schema, "object", path)  # type: ignore[valid-type]


def _choice(schema: Mapping[str, Any], path: str) -> Any:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list) or not values or not all(isinstance(each, str | int | None) for each in values):
        raise WasmError(f"{path}.enum: must be a list of texts, integers, booleans or null")
    _require_only(schema, {"enum", "const", "type"}, path)
    return Literal[tuple(values)]


def _bounded(kind: Any, schema: Mapping[str, Any], named: str, path: str) -> Any:
    bounds: dict[str, Any] = {}
    for keyword, name in _BOUNDS.get(named, {}).items():
        if keyword in schema:
            value = schema[keyword]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise WasmError(f"{path}.{keyword}: must be a number")
            bounds[name] = value
    return Annotated[kind, Field(**bounds)] if bounds else kind


def _require_known(schema: Mapping[str, Any], named: str, path: str) -> None:
    _require_only(schema, {"type", *_BOUNDS.get(named, ()), *_OTHERS.get(named, ())}, path)


def _require_only(schema: Mapping[str, Any], known: set[str], path: str) -> None:
    for keyword in schema:
        if keyword not in known and keyword not in _NOTES:
            raise WasmError(f"{path}.{keyword}: is not supported here; supported are {', '.join(sorted(known))}")
