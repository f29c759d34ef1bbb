"""The form that a request asks its output to have."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.request.limits import MAX_CHOICES


class GuidedDecodingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the output has to be, under the names of FastDeploy and vLLM; exactly one of these.

    json: a JSON text that a JSON Schema allows; the schema as a dict or as text.
    json_object: True for any JSON object.
    regex: text that the whole of a regular expression matches (Rust's syntax, no lookarounds).
    choice: one of these strings.
    grammar: text of a context-free grammar in Lark's notation, whose first rule is `start`.
    structural_tag: free text in which what stands between certain tags is JSON:
        `{"triggers": ["<f"], "structures": [{"begin": "<f=x>", "schema": {…}, "end": "</f>"}]}`, or this as text.

    Raises ValueError naming the field, `guided_decoding.regex: …`.
    """

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            fields, found = ", ".join(self.__struct_fields__), ", ".join(given) or "none of them"
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

    def _check_choice(self) -> None:
        if self.choice is None:
            return
        if not isinstance(self.choice, list) or not 1 <= len(self.choice) <= MAX_CHOICES:
            raise ValueError(f"guided_decoding.choice: must be a list of 1 to {MAX_CHOICES} strings")
        for index, text in enumerate(self.choice):
            if not isinstance(text, str) or not text:
                raise ValueError(f"guided_decoding.choice.{index}: must be a string that is not empty")

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(name for name in self.__struct_fields__ if getattr(self, name) is not None)


def _require(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"guided_decoding.{name}: must be {allowed}, not {type(value).__name__}")
