"""Body fields that constrain the form of outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest, RequestModel, Texts
from fastdeploy_lp.request.guided_decoding import JSON_FORMS, GuidedDecodingParams, Whitespace, require_pattern
from fastdeploy_lp.request.sampling_params import SamplingParams


class JsonSchemaFormat(RequestModel):
    """A JSON Schema with a name; answers always conform to it, regardless of `strict`."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    description: str | None = None
    # pydantic has a method of that name.
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class Structure(RequestModel):
    """JSON between two tags."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)

    begin: str
    json_schema: dict[str, Any] = Field(alias="schema")
    end: str


class ResponseFormat(RequestModel):
    """The form of the answer: any text, JSON, or free text with JSON between tags."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[Structure] | None = None
    triggers: Texts | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        needed = {"json_schema": ("json_schema",), "structural_tag": ("structures", "triggers")}.get(self.type, ())
        for name in ("json_schema", "structures", "triggers"):
            if (getattr(self, name) is not None) != (name in needed):
                word = "needed" if name in needed else "not allowed"
                raise ValueError(f"{name}: {word} with the type {self.type}")
        return self

    @property
    def is_json(self) -> bool:
        """True if the whole answer is JSON."""
        return self.type in ("json_object", "json_schema")

    @property
    def schema_of_answer(self) -> dict[str, Any]:
        """The JSON Schema of a JSON answer."""
        return {"type": "object"} if self.json_schema is None else self.json_schema.json_schema

    @property
    def guided_decoding(self) -> GuidedDecodingParams | None:
        """The equivalent guided decoding parameters; None for any text. Raises ValueError naming the field."""
        if self.type == "json_object":
            return GuidedDecodingParams(json_object=True)
        if self.type == "json_schema":
            return GuidedDecodingParams(json=self.schema_of_answer)
        if self.type == "structural_tag":
            structures = [each.model_dump(by_alias=True) for each in self.structures or []]
            return GuidedDecodingParams(structural_tag={"triggers": self.triggers, "structures": structures})
        return None

    @property
    def path(self) -> str:
        """Path of the field that defines the form."""
        schema = "response_format.json_schema.schema"
        return {"json_schema": schema, "json_object": "response_format.type"}.get(self.type, "response_format")


class StructuredOutputs(RequestModel):
    """vLLM's form of an output: the fields of GuidedDecodingParams in one object."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)

    # pydantic has a method of that name.
    json_schema: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are set, by their names in GuidedDecodingParams."""
        fields = self.model_dump(by_alias=True, exclude_none=True)
        return {name: value for name, value in fields.items() if (name, value) != ("json_object", False)}


# Body fields, and their names in GuidedDecodingParams.
KINDS = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}


# Body fields of the whitespace of JSON, and their names in GuidedDecodingParams.
WHITESPACE_NAMES = {"guided_whitespace": "whitespace", "guided_whitespace_pattern": "whitespace_pattern"}
WHEN = "guided_when"
STRUCTURED = "structured_outputs"


class GuidedRequest(GenerationRequest):
    """A body that may constrain the form of its outputs, by at most one of these fields, and the whitespace of JSON."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_whitespace: Literal["bounded", "any", "none"] | None = None
    guided_whitespace_pattern: str | None = None
    guided_when: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = self.guided_fields
        if self.response_format is not None and self.response_format.type != "text":
            given.append("response_format")
        if len(given) > 1:
            raise ValueError(f"{given[0]}: only one of {', '.join(given)} is allowed")
        return self

    @model_validator(mode="after")
    def _whitespace_has_json(self) -> Self:
        given = [name for name in WHITESPACE_NAMES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: only one of {', '.join(given)} is allowed")
        if self.guided_whitespace_pattern is not None:
            require_pattern(self.guided_whitespace_pattern, "guided_whitespace_pattern")
        if given and not self.may_have_json:
            raise ValueError(f"{given[0]}: is only allowed where a field asks for JSON")
        return self

    @model_validator(mode="after")
    def _when_has_a_form(self) -> Self:
        if self.guided_when is not None and not self.may_have_form:
            raise ValueError(f"{WHEN}: is only allowed with a field that asks for a form")
        return self

    @property
    def guided_fields(self) -> list[str]:
        """Names of the set fields that ask for a form, besides `response_format`."""
        # guided_json_object: false sets no constraint.
        return [name for name in (*KINDS, STRUCTURED) if getattr(self, name) not in (None, False)]

    @property
    def _form_fields(self) -> dict[str, Any]:
        """The values of the guided fields, by their names in GuidedDecodingParams."""
        if self.structured_outputs is not None:
            return self.structured_outputs.given
        return {KINDS[name]: getattr(self, name) for name in self.guided_fields}

    @property
    def may_have_form(self) -> bool:
        """True if a field asks for a form."""
        return bool(self.guided_fields) or (self.response_format is not None and self.response_format.type != "text")

    @property
    def may_have_json(self) -> bool:
        """True if a field asks for JSON."""
        if self.response_format is not None and self.response_format.type != "text":
            return True
        return not self._form_fields.keys().isdisjoint(JSON_FORMS)

    def json_whitespace(self, mode: str) -> Whitespace:
        """The whitespace of this body's JSON; `mode`, one of WHITESPACE, unless the body has its own."""
        return Whitespace(self.guided_whitespace or mode, self.guided_whitespace_pattern)

    @property
    def guided_decoding(self) -> GuidedDecodingParams | None:
        """The requested form; None for any text. Raises ValueError naming the field."""
        form = GuidedDecodingParams(**self._form_fields) if self.guided_fields else None
        if form is None and self.response_format is not None:
            form = self.response_format.guided_decoding
        if form is None:
            return None
        own = {**WHITESPACE_NAMES, WHEN: "when"}
        return replace(form, **{own[name]: getattr(self, name) for name in own if getattr(self, name) is not None})

    def sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters with the requested form; raises ValueError naming the field."""
        params = super().sampling_params()
        params.guided_decoding = self.guided_decoding
        return params

    def sent_name(self, field: str) -> str:
        """Returns the body's name of a field: for `guided_decoding.regex`, `guided_regex` or the response format."""
        first, _, rest = field.partition(".")
        if first != "guided_decoding":
            return super().sent_name(field)
        kind, dot, path = rest.partition(".")
        return f"{self.sent_kind(kind)}{dot}{path}"

    def sent_kind(self, kind: str) -> str:
        """Returns the body's name for a field of GuidedDecodingParams; "" is the form itself."""
        if self.structured_outputs is not None and kind in ("", *self.structured_outputs.given):
            return f"{STRUCTURED}.{kind}".rstrip(".")
        for name, own in (*WHITESPACE_NAMES.items(), (WHEN, "when")):
            if own == kind:
                return name
        if not self.guided_fields and self.response_format is not None:
            return self.response_format.path
        return next((name for name, own in KINDS.items() if own == kind), kind)
