"""The form that a request asks its output to have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from fastdeploy_lp.request.limits import MAX_CHOICES

WHITESPACE = ("bounded", "any", "none")
"""Whitespace between the parts of JSON: a blank or a line break with an indent, any, or none."""

FORMS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
MAX_WHITESPACE_PATTERN = 128
"""Characters of a regular expression for whitespace."""

JSON_FORMS = ("json", "json_object", "structural_tag")
WHITESPACE_FIELDS = ("whitespace", "whitespace_pattern", "disable_any_whitespace")


@dataclass(frozen=True)
class Whitespace:
    """Whitespace between the parts of JSON: one of WHITESPACE or, if given, what a regular expression matches."""

    mode: str = "bounded"
    pattern: str | None = None


class GuidedDecodingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The form of an output, under the names of FastDeploy and vLLM; exactly one of the first six.

    json: a JSON text that a JSON Schema allows; the schema as a dict or as text.
    json_object: True for any JSON object.
    regex: text that the whole of a regular expression matches (Rust's syntax, no lookarounds).
    choice: one of these strings.
    grammar: text of a context-free grammar in Lark's notation, whose first rule is `start`, or in GBNF, whose first
        rule is `root`.
    structural_tag: free text in which what stands between certain tags is JSON:
        `{"triggers": ["<f"], "structures": [{"begin": "<f=x>", "schema": {…}, "end": "</f>"}]}`, or this as text.

    At most one of the next three, with `json`, `json_object` or `structural_tag`; the server's option without them.

    whitespace: what may be between the parts of JSON, one of WHITESPACE.
    whitespace_pattern: a regular expression that whitespace between the parts of JSON matches; none is allowed, too.
    disable_any_whitespace: True for `whitespace` "none", vLLM's name; False has no effect.

    disable_additional_properties: True if objects with `properties` in the schema of `json` have no others, unless the
        schema says so.

    when: the part of the output that has the form, as in an entry of `logits_processors`; None for all of it, or for
        the answer after the reasoning in a chat with a reasoning parser.

    Raises ValueError naming the field, `guided_decoding.regex: …`.
    """

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    when: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            fields, found = ", ".join(FORMS), ", ".join(given) or "none of them"
            raise ValueError(f"guided_decoding: must have exactly one of {fields}, not {found}")
        for name in ("json", "structural_tag"):
            _require(name, getattr(self, name), (dict, str), "an object or its JSON text")
        for name in ("regex", "grammar"):
            _require(name, getattr(self, name), str, "a string that is not empty")
            if getattr(self, name) == "":
                raise ValueError(f"guided_decoding.{name}: must be a string that is not empty")
        if self.json_object is not None and self.json_object is not True:
            raise ValueError(f"guided_decoding.json_object: must be true, not {self.json_object!r}")
        self._check_choice()
        self._check_whitespace()

    def _check_choice(self) -> None:
        if self.choice is None:
            return
        if not isinstance(self.choice, list) or not 1 <= len(self.choice) <= MAX_CHOICES:
            raise ValueError(f"guided_decoding.choice: must be a list of 1 to {MAX_CHOICES} strings")
        for index, text in enumerate(self.choice):
            if not isinstance(text, str) or not text:
                raise ValueError(f"guided_decoding.choice.{index}: must be a string that is not empty")

    def _check_whitespace(self) -> None:
        if self.whitespace is not None and self.whitespace not in WHITESPACE:
            raise ValueError(f"guided_decoding.whitespace: {self.whitespace!r} is none of {', '.join(WHITESPACE)}")
        if self.whitespace_pattern is not None:
            require_pattern(self.whitespace_pattern)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            _require(name, getattr(self, name), bool, "true or false")
        if self.disable_additional_properties and self.json is None:
            raise ValueError("guided_decoding.disable_additional_properties: is allowed with json only")
        given = [name for name in WHITESPACE_FIELDS if getattr(self, name) not in (None, False)]
        if len(given) > 1:
            raise ValueError(f"guided_decoding.{given[0]}: only one of {', '.join(given)} is allowed")
        if given and self.kind not in JSON_FORMS:
            raise ValueError(f"guided_decoding.{given[0]}: is allowed with {', '.join(JSON_FORMS)}, not {self.kind}")

    @property
    def kind(self) -> str:
        """The name of the form that is given."""
        return next(name for name in FORMS if getattr(self, name) is not None)

    def json_whitespace(self, mode: str) -> Whitespace:
        """The whitespace of this request's JSON; `mode`, one of WHITESPACE, unless the request has its own."""
        own = "none" if self.disable_any_whitespace else self.whitespace
        return Whitespace(own or mode, self.whitespace_pattern)


def require_pattern(pattern: object, field: str = "guided_decoding.whitespace_pattern") -> None:
    """Raises ValueError naming the field unless it is a short regular expression."""
    if not isinstance(pattern, str) or not 1 <= len(pattern) <= MAX_WHITESPACE_PATTERN:
        allowed = f"a regular expression of 1 to {MAX_WHITESPACE_PATTERN} characters"
        raise ValueError(f"{field}: must be {allowed}")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{field}: is no regular expression: {error}") from None


def _require(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"guided_decoding.{name}: must be {allowed}, not {type(value).__name__}")
