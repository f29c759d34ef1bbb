"""From the form that is asked for to what a text has to be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.grammars import TinyGrammars

from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.limits import MAX_GBNF

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TAG = {"triggers": ["<f"], "structures": [{"begin": "<f=x>", "schema": PERSON, "end": "</f>"}]}


@pytest.mark.parametrize(
    ("form", "fitting", "other"),
    [
        ({"json": PERSON}, ['{"age":5}', '{ "age" : 5 }', '{"age":5,"x":[]}'], ["{}", '{"age":"5"}', "5", ""]),
        ({"json": json.dumps(PERSON)}, ['{"age":5}'], ["{}"]),
        ({"json_object": True}, ["{}", '{"a":[1,null]}'], ["[]", "1", "text"]),
        ({"regex": "[0-9]{2}|x+"}, ["12", "x", "xxx"], ["1", "123", "", "12x"]),
        ({"choice": ["yes", "yes, sir", "no"]}, ["yes", "yes, sir", "no"], ["ye", "yes,", "none", ""]),
        ({"grammar": 'start: "(" start ")" | "x"'}, ["x", "((x))"], ["((x)", "()", ""]),
        ({"grammar": 'root ::= "(" root ")" | [a-c]+'}, ["abc", "((b))"], ["((x)", "()", ""]),
        ({"grammar": 'start: "::=" | "x"'}, ["x", "::="], [""]),
        ({"json": PERSON, "disable_additional_properties": True}, ['{"age":5}'], ["{}", '{"age":5,"x":[]}']),
        ({"json": PERSON, "disable_additional_properties": False}, ['{"age":5,"x":[]}'], ["{}"]),
        ({"structural_tag": TAG}, ["plain", '<f=x>{"age":5}</f>', "a <"], ["<f=y>", '<f=x>{"age":""}</f>']),
        ({"structural_tag": json.dumps({"type": "structural_tag", **TAG})}, ["plain"], ["<f=y>"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_texts_that_fit_and_others(
    grammars: TinyGrammars, form: dict[str, Any], fitting: list[str], other: list[str]
) -> None:
    assert [text for text in fitting if not grammars.fits(text, **form)] == []
    assert [text for text in other if grammars.fits(text, **form)] == []


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "integer"}}, **CLOSED}),
        ({"properties": {}, "additionalProperties": {}}, {"properties": {}, "additionalProperties": {}}),
        ({"type": "object"}, {"type": "object"}),
        ({"items": {"anyOf": [{"properties": {}}, {}]}}, {"items": {"anyOf": [{"properties": {}, **CLOSED}, {}]}}),
        # A property of this name, and a value that looks like a schema.
        ({"properties": {"properties": {}}}, {"properties": {"properties": {}}, **CLOSED}),
        (
            {"$defs": {"properties": {"enum": [{"properties": 1}]}}},
            {"$defs": {"properties": {"enum": [{"properties": 1}]}}},
        ),
    ],
    ids=str,
)
def test_a_schema_without_additional_properties(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    given = GuidedDecodingParams(json=schema, disable_additional_properties=True)
    assert (
        grammar_of(given, whitespace="any").text == grammar_of(GuidedDecodingParams(json=closed), whitespace="any").text
    )


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a', "is no valid GBNF: Unexpected end"),
        ("root ::= missing", "is no valid GBNF: Rule 'missing' not found"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "is nested too deeply"),
        ("root ::= " + '"a" ' * 5000, f"a grammar in GBNF may have {MAX_GBNF} characters, not 20009"),
    ],
    ids=lambda value: value[:40],
)
def test_gbnf_that_cannot_be_read_is_refused(grammar: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"guided_decoding.grammar: {reason}"):
        grammar_of(GuidedDecodingParams(grammar=grammar))


@pytest.mark.parametrize("form", [{"json": PERSON}, {"json_object": True}, {"structural_tag": TAG}], ids=str)
def test_json_without_whitespace(grammars: TinyGrammars, form: dict[str, Any]) -> None:
    body = '{"age":%s5}' if "structural_tag" not in form else '<f=x>{"age":%s5}</f>'
    assert grammars.fits(body % "", server="none", **form)
    assert grammars.fits(body % " \n", server="any", **form)
    assert not grammars.fits(body % " ", server="none", **form)


@pytest.mark.parametrize("form", [{"json": PERSON}, {"json_object": True}, {"structural_tag": TAG}], ids=str)
def test_whitespace_is_bounded_by_default(grammars: TinyGrammars, form: dict[str, Any]) -> None:
    body = '{%s"age"%s:%s5%s}' if "structural_tag" not in form else '<f=x>{%s"age"%s:%s5%s}</f>'
    for fitting in ("", " ", "\n", "\n" + 20 * " ", "\n\t\t"):
        assert grammars.fits(body % (4 * (fitting,)), **form)
    for other in ("  ", "\n\n", " \n", "\t", "\r\n", "\n" + 21 * " "):
        for place in range(4):
            gaps = ["", "", "", ""]
            gaps[place] = other
            assert not grammars.fits(body % tuple(gaps), **form)


@pytest.mark.parametrize(
    "layout", [{}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}], ids=str
)
def test_the_default_allows_every_usual_layout(grammars: TinyGrammars, layout: dict[str, Any]) -> None:
    value = {"age": 1, "more": [{"a": [1, 2.5, [], {}]}, None, "  \\n\\n  "]}
    assert grammars.fits(json.dumps(value, **layout), json=PERSON)


@pytest.mark.parametrize(
    ("own", "fitting", "other"),
    [
        ({"whitespace": "none"}, "", " "),
        ({"disable_any_whitespace": True}, "", " "),
        ({"whitespace": "bounded"}, " ", "  "),
        ({"whitespace_pattern": "[ ]{3}"}, "   ", " "),
        ({"whitespace_pattern": "[ ]?"}, "", "  "),
        ({"whitespace": "any"}, " \n\n ", "x"),
        ({"disable_any_whitespace": False}, " \n\n ", "x"),
    ],
    ids=str,
)
def test_a_request_has_its_own_whitespace(
    grammars: TinyGrammars, own: dict[str, Any], fitting: str, other: str
) -> None:
    """Whatever the server's; the cache of compiled grammars keeps them apart."""
    assert grammars.fits(f'{{"age":{fitting}5}}', server="any", json=PERSON, **own)
    assert not grammars.fits(f'{{"age":{other}5}}', server="any", json=PERSON, **own)


def test_a_schema_may_say_itself_what_whitespace_there_is(grammars: TinyGrammars) -> None:
    own = {"x-guidance": {"whitespace_flexible": True}, **PERSON}
    assert grammars.fits('{"age": 5}', server="none", json=own)
    assert grammars.fits('{"age":  5}', json=own)
    other = {"x-guidance": {"coerce_one_of": True}, **PERSON}
    assert grammars.fits('{"age": 5}', json=other)
    assert not grammars.fits('{"age":  5}', json=other)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": "{"}, "guided_decoding.json: is no valid JSON"),
        ({"regex": "[a-z]+\ud800"}, "guided_decoding.regex: no valid Unicode"),
        ({"grammar": 'start: "\ud800"'}, "guided_decoding.grammar: no valid Unicode"),
        ({"json": "[]"}, "guided_decoding.json: must be a JSON object, not list"),
        ({"structural_tag": "5"}, "guided_decoding.structural_tag: must be a JSON object"),
        ({"structural_tag": {}}, "guided_decoding.structural_tag: must have triggers, structures and nothing else"),
        ({"structural_tag": {**TAG, "format": 1}}, "must have triggers, structures and nothing else"),
        ({"structural_tag": {**TAG, "triggers": [""]}}, "guided_decoding.structural_tag.triggers: must be a list"),
        ({"structural_tag": {**TAG, "structures": []}}, "guided_decoding.structural_tag.structures: must be a list"),
        ({"structural_tag": {**TAG, "structures": [{}]}}, "structural_tag.structures.0: must have begin, schema, end"),
        ({"structural_tag": {**TAG, "triggers": ["<g"]}}, "structural_tag.structures.0.begin: must begin with one of"),
        (
            {"structural_tag": {**TAG, "structures": [{"begin": 1, "schema": {}, "end": ""}]}},
            "structural_tag.structures.0: begin and end must be strings",
        ),
        (
            {"structural_tag": {**TAG, "structures": [{"begin": "<f", "schema": [], "end": ""}]}},
            "structural_tag.structures.0.schema: must be a JSON object, not list",
        ),
    ],
    ids=ascii,
)
def test_what_can_not_be_read_is_named(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grammar_of(GuidedDecodingParams(**form))


def test_a_schema_nested_too_deeply_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"not": nested}
    with pytest.raises(ValueError, match=r"guided_decoding\.json: is nested too deeply"):
        grammar_of(GuidedDecodingParams(json=nested))
