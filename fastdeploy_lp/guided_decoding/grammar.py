"""Grammars for output formats: conversion of a request's format to the text of a grammar in llguidance's Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams, Whitespace
from fastdeploy_lp.request.limits import MAX_GBNF
from fastdeploy_lp.request.phase import Phase

# The library's options. A blank, or a line break with an indent: small models repeat whitespace while they may.
WHITESPACE_OPTIONS: dict[str, dict[str, Any]] = {
    "bounded": {"whitespace_pattern": r"[ ]|\n[ \t]{0,20}"},
    "any": {},
    "none": {"whitespace_flexible": False},
}
WHITESPACE_KEYS = frozenset({"whitespace_pattern", "whitespace_flexible"})

# Rules of GBNF have this sign, and the first one of Lark this form.
GBNF_SIGN = "::="
LARK_START = re.compile(r"^start[ \t]*:(?!:=)", re.MULTILINE)

# Keywords of a JSON Schema with schemas by name, and with values that are no schemas.
SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
VALUES = frozenset({"const", "default", "enum", "examples", "x-guidance"})

# Free text, in which a lazy rule finds its trigger as soon as it is written.
FREE_TEXT = "TEXT: /(.|\\n)*/"


@dataclass(frozen=True)
class Tagged:
    """JSON between two texts: `begin`, what `schema` allows, `end`; `begin` starts with its `trigger`."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def one_of(texts: Sequence[str]) -> str:
    """A grammar of these strings and nothing else."""
    return f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, texts))}\n"


def free_text_with(tags: Sequence[Tagged], triggers: Sequence[str]) -> str:
    """A grammar of any text; a trigger that is written has to go on as one of the tags that begin with it.

    Every tag has to begin with one of the triggers; of several the first counts.
    """
    heads = [f"head_{number}[lazy]: TEXT {quoted(trigger)}" for number, trigger in enumerate(triggers)]
    rules = []
    for number, tag in enumerate(tags):
        head = next(place for place, trigger in enumerate(triggers) if tag.begin.startswith(trigger))
        rest = tag.begin[len(triggers[head]) :]
        rules.append(f"tag_{number}: head_{head} {quoted(rest)} json_{number} {quoted(tag.end)}")
    names = " | ".join(f"tag_{number}" for number in range(len(tags)))
    start = f"start: ({names})* rest\nrest: TEXT"
    return "\n".join([start, FREE_TEXT, *heads, *rules, *_schemas(tags), ""])


def calls_only(tags: Sequence[Tagged], *, several: bool, answer: Mapping[str, Any] | None = None) -> str:
    """A grammar of one tag, or with `several` of more, one on a line; or, with `answer`, of JSON of that schema."""
    names = " | ".join(f"tag_{number}" for number in range(len(tags)))
    calls = 'calls: call ("\\n" call)*' if several else "calls: call"
    rules = [
        f"tag_{number}: {quoted(tag.begin)} json_{number} {quoted(tag.end)}".rstrip() for number, tag in enumerate(tags)
    ]
    start = ["start: calls"] if answer is None else ["start: calls | answer", f"answer: %json {json.dumps(answer)}"]
    return "\n".join([*start, calls, f"call: {names}", *rules, *_schemas(tags), ""])


def quoted(text: str) -> str:
    """A string of the notation, which writes them as JSON does; nothing for an empty one."""
    return json.dumps(text) if text else ""


def _schemas(tags: Sequence[Tagged]) -> list[str]:
    # Each is a separate document, so that references inside it keep their meaning.
    return [f"json_{number}: %json {json.dumps(tag.schema)}" for number, tag in enumerate(tags)]


STRUCTURE_KEYS = ("begin", "schema", "end")
TAG_KEYS = ("triggers", "structures")


@dataclass(frozen=True)
class Grammar:
    """Grammar of an output in the library's syntax; `field` is the request's field that has it, for errors.

    phase: the part of the output that has the form, None for all of it. The grammar of a part that a marker ends has
    this marker at its end.
    """

    text: str
    field: str
    phase: Phase | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All grammars that the worker compiles for the request."""
        opening = None if self.phase is None else self.phase.opening
        return (self.text,) if opening is None else (self.text, opened_by(self.text, opening))

    def within(self, phase: Phase) -> Grammar:
        """Returns the grammar of an output that has this form in one phase."""
        return Grammar(closed_by(self.text, phase.closing) if phase.closing else self.text, self.field, phase)


def closed_by(text: str, marker: str) -> str:
    """Returns the grammar of a form that a marker follows, from the grammar of the form."""
    return _around(text, f"start: @form {quoted(marker)}")


@lru_cache(maxsize=64)
def opened_by(text: str, marker: str) -> str:
    """Returns the grammar of a form, or of a marker instead of it, which a little whitespace may precede."""
    # A token may hold the marker and the text after it.
    opening = f"opening: SPACE? {quoted(marker)} REST?\nSPACE: /[ \\t\\r\\n]{{1,8}}/\nREST: /(.|\\n)+/"
    return _around(text, f"start: opening | @form\n{opening}")


def _around(text: str, top: str) -> str:
    """Returns the grammar `top` with the grammar of a form in the place of `@form`."""
    # The library writes grammars as JSON, or as plain Lark.
    grammars = json.loads(text)["grammars"] if text.lstrip().startswith("{") else [{"lark_grammar": text}]
    form, *others = grammars
    return json.dumps({"grammars": [{"lark_grammar": top}, {**form, "name": "form"}, *others]})


def grammar_of(params: GuidedDecodingParams, *, whitespace: str = "bounded") -> Grammar:
    """The grammar, which is not compiled yet; `whitespace` is the mode of JSON unless the request has its own.

    Raises ValueError naming the field for what can not be read at all.
    """
    field = f"guided_decoding.{params.kind}"
    try:
        return Grammar(_text_of(params, field, params.json_whitespace(whitespace)), field)
    except RecursionError:
        raise ValueError(f"{field}: is nested too deeply") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"{field}: no valid Unicode: {error.reason}") from None


def with_whitespace(schema: Mapping[str, Any], whitespace: Whitespace) -> dict[str, Any]:
    """The schema with the library's options of whitespace; its own options take precedence."""
    pattern, own = whitespace.pattern, schema.get("x-guidance", {})
    options = WHITESPACE_OPTIONS[whitespace.mode] if pattern is None else {"whitespace_pattern": pattern}
    if not options or not isinstance(own, Mapping) or WHITESPACE_KEYS & own.keys():
        return dict(schema)
    return {**schema, "x-guidance": {**options, **own}}


def _text_of(params: GuidedDecodingParams, field: str, whitespace: Whitespace) -> str:
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        return LLMatcher.grammar_from_lark(one_of(params.choice))
    if params.grammar is not None:
        return LLMatcher.grammar_from_lark(_lark(params.grammar, field))
    if params.structural_tag is not None:
        return LLMatcher.grammar_from_lark(_structural_tag(params.structural_tag, field, whitespace))
    schema = {"type": "object"} if params.json is None else _object(params.json, field)
    if params.disable_additional_properties:
        schema = _closed(schema)
    return LLMatcher.grammar_from_json_schema(json.dumps(with_whitespace(schema, whitespace)))


def _lark(grammar: str, field: str) -> str:
    """Returns a grammar in Lark's notation; one in GBNF, which llama.cpp, vLLM and SGLang take, is converted."""
    if GBNF_SIGN not in grammar or LARK_START.search(grammar) is not None:
        return grammar
    if len(grammar) > MAX_GBNF:
        raise ValueError(f"{field}: a grammar in GBNF may have {MAX_GBNF} characters, not {len(grammar)}")
    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself for an unknown rule
        raise ValueError(f"{field}: is no valid GBNF: {error}") from None


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema whose objects with `properties` have no others, unless it says so."""
    closed: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            closed[keyword] = {name: _closed_or_same(each) for name, each in value.items()}
        else:
            closed[keyword] = value if keyword in VALUES else _closed_or_same(value)
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed_or_same(value: Any) -> Any:
    if isinstance(value, list):
        return [_closed_or_same(each) for each in value]
    return _closed(value) if isinstance(value, Mapping) else value


def _structural_tag(given: Mapping[str, Any] | str, field: str, whitespace: Whitespace) -> str:
    content = _object(given, field)
    if content.get("type") == "structural_tag":
        content = {key: value for key, value in content.items() if key != "type"}
    _require_keys(content, TAG_KEYS, field)
    triggers, structures = content["triggers"], content["structures"]
    if not _is_list_of(triggers, str) or not all(triggers):
        raise ValueError(f"{field}.triggers: must be a list of strings that are not empty, at least one")
    if not _is_list_of(structures, dict):
        raise ValueError(f"{field}.structures: must be a list of objects, at least one")
    tags = []
    for index, each in enumerate(structures):
        path = f"{field}.structures.{index}"
        _require_keys(each, STRUCTURE_KEYS, path)
        if not isinstance(each["begin"], str) or not isinstance(each["end"], str):
            raise ValueError(f"{path}: begin and end must be strings")
        if not any(each["begin"].startswith(trigger) for trigger in triggers):
            raise ValueError(f"{path}.begin: must begin with one of the triggers")
        schema = with_whitespace(_object(each["schema"], f"{path}.schema"), whitespace)
        tags.append(Tagged(each["begin"], schema, each["end"]))
    return free_text_with(tags, triggers)


def _object(given: Any, field: str) -> dict[str, Any]:
    """A JSON object that is given as one, or as its text."""
    content = given
    if isinstance(given, str):
        try:
            content = json.loads(given)
        except ValueError as error:
            raise ValueError(f"{field}: is no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{field}: must be a JSON object, not {type(content).__name__}")
    return content


def _require_keys(content: Mapping[str, Any], keys: tuple[str, ...], field: str) -> None:
    if set(content) != set(keys):
        raise ValueError(f"{field}: must have {', '.join(keys)} and nothing else")


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, kind) for each in value)
