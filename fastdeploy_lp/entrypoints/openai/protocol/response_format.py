"""Requested form of the answer, in OpenAI's terms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel, Texts
from fastdeploy_lp.guided_decoding.params import GuidedDecodingParams


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
