"""`fastdeploy-lp processors`: lists logits processors and their arguments, without a model."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdeploy_lp.engine.client.processor_states import ProcessorInfo, ProcessorStates
from fastdeploy_lp.entrypoints.usage import CommandParser
from fastdeploy_lp.logits_processor import BUILTIN, load_processors, vllm_compat

_PLURALS = {"integer": "integers", "number": "numbers", "string": "strings", "boolean": "booleans", "array": "lists"}
_LENGTHS = (("minItems", "maxItems", "entries"), ("minProperties", "maxProperties", "entries"))
_TEXT_LENGTH = ("minLength", "maxLength", "characters")


def parameter_section(info: ProcessorInfo) -> str:
    """Returns a heading, the processor's description, and a table with a row for each argument.

    Without a JSON Schema of the arguments, a sentence replaces the table.
    """
    parts = [f"## {info.name}", info.description or "It has no description."]
    schema = info.parameters
    if schema is None:
        return "\n\n".join([*parts, "The server does not know its arguments.\n"])
    if schema.get("description"):
        parts.append(schema["description"])
    rows = ["| argument | takes | default |", "|---|---|---|", *_rows(schema)]
    parts.append("\n".join(rows) if schema.get("properties") else "It takes no arguments.")
    return "\n\n".join(parts) + "\n"


def _rows(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, argument in schema.get("properties", {}).items():
        default = "needed" if name in required else _default(argument)
        yield f"| `{name}` | {_cell(_takes(argument, schema))} | {default} |"


def _default(argument: Mapping[str, Any]) -> str:
    value = argument.get("default")
    return "none" if value is None else f"`{_cell(json.dumps(value, ensure_ascii=False))}`"


def _takes(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Returns a value's type and bounds in words; omits null, which is equivalent to no value."""
    kind = _resolved(kind, schema)
    if "const" in kind or "enum" in kind:
        values = kind.get("enum", [kind.get("const")])
        return " or ".join(f"`{json.dumps(value, ensure_ascii=False)}`" for value in values)
    for union in ("anyOf", "oneOf"):
        if union in kind:
            choices = [choice for choice in kind[union] if choice.get("type") != "null"]
            return " or ".join(_takes(choice, schema) for choice in choices)
    return ", ".join([_type(kind, schema), *_bounds(kind)])


def _type(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    name = kind.get("type")
    if name == "array" and "prefixItems" in kind:
        return f"[{'; '.join(_takes(item, schema) for item in kind['prefixItems'])}]"
    if name == "array":
        return f"list of {_several(kind.get('items', {}), schema)}"
    values = kind.get("additionalProperties")
    if name == "object" and isinstance(values, dict):
        return f"object of {_several(values, schema)}"
    return str(name or "anything")


def _several(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Returns the type of a list's items, or an object's values, in the plural."""
    kind = _resolved(kind, schema)
    if kind.get("type") in _PLURALS and not kind.keys() & {"items", "prefixItems", "enum", "const"}:
        return ", ".join([_PLURALS[kind["type"]], *_bounds(kind)])
    return f"({_takes(kind, schema)})"


def _resolved(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = kind.get("$ref")
    return kind if reference is None else schema["$defs"][reference.rpartition("/")[2]]


def _bounds(kind: Mapping[str, Any]) -> Iterator[str]:
    low = _bound(kind, "minimum", "exclusiveMinimum", "at least", "above")
    high = _bound(kind, "maximum", "exclusiveMaximum", "at most", "below")
    if low or high:
        yield " and ".join(filter(None, (low, high)))
    for least, most, what in (*_LENGTHS, _TEXT_LENGTH):
        # `_type` describes the parts of a pair one by one.
        if (least in kind or most in kind) and "prefixItems" not in kind:
            yield f"{_range(kind.get(least), kind.get(most))} {what}"


def _bound(kind: Mapping[str, Any], closed: str, open_: str, at: str, beyond: str) -> str:
    if closed in kind:
        return f"{at} {_number(kind[closed])}"
    return f"{beyond} {_number(kind[open_])}" if open_ in kind else ""


def _range(least: int | None, most: int | None) -> str:
    if most is None:
        return f"{least} or more"
    return f"at most {most}" if least is None else f"{least} to {most}"


def _number(value: float) -> str:
    """Returns large numbers in full, since a bound must be exact."""
    return str(int(value)) if float(value).is_integer() else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Shows the chain that `--logits-processors SPEC …` declares; returns 2 for a SPEC without a processor."""
    parser = CommandParser(
        prog=prog, description="List these logits processors, and the installed ones, with their arguments."
    )
    text = "same syntax as --logits-processors (default: the builtin ones)"
    parser.add_argument("specs", nargs="*", metavar="SPEC", help=text)
    parser.add_argument("--mandatory", nargs="+", default=[], metavar="NAME", help="as --mandatory of a server")
    parser.add_argument("--json", action="store_true", help="as JSON, with the schemas of their arguments")
    parser.add_argument("--markdown", action="store_true", help="as Markdown, with a table of arguments each")
    parser.add_argument("--vllm-compat", action="store_true", help="let them import vllm's modules without vLLM")
    options = parser.parse_args(argv)
    if options.vllm_compat:
        vllm_compat.install()
    try:
        declared = load_processors(
            options.specs or list(BUILTIN), mandatory=options.mandatory, vllm_entry_points=options.vllm_compat
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    infos = ProcessorStates(declared).describe()
    if options.json:
        print(json.dumps([_as_dict(info) for info in infos], indent=2, ensure_ascii=False))
    elif options.markdown:
        print("\n".join(map(parameter_section, infos)).rstrip("\n"))
    else:
        print("\n".join(_table(infos, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)))
    return 0


def _as_dict(info: ProcessorInfo) -> dict[str, Any]:
    names = ("order", "name", "stage", "dialect", "source", "spec", "mandatory", "description", "parameters")
    return {name: getattr(info, name) for name in names}


_HEAD = ("name", "from", "arguments", "effect")


def _table(infos: Sequence[ProcessorInfo], width: int | None) -> Iterator[str]:
    """Yields a line for each processor, in chain order, of at most `width` characters."""
    rows = [_HEAD, *map(_row, infos)]
    columns = [max(len(row[place]) for row in rows) for place in range(len(_HEAD) - 1)]
    for row in rows:
        cells = [f"{cell:<{size}}" for cell, size in zip(row, columns, strict=False)]
        yield "  ".join([*cells, row[-1]])[:width].rstrip()


def _row(info: ProcessorInfo) -> tuple[str, str, str, str]:
    source = info.source if info.source == "builtin" else f"{info.dialect} {info.spec}"
    arguments = "unknown" if info.parameters is None else ", ".join(info.parameters.get("properties", ())) or "none"
    effect = re.split(r"(?<=\.) ", info.description or "no description", maxsplit=1)[0]
    return info.name, f"{source}, mandatory" if info.mandatory else source, arguments, " ".join(effect.split())
