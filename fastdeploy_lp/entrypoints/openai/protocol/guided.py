"""Body fields that constrain the form of outputs."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest, Texts
from fastdeploy_lp.entrypoints.openai.protocol.response_format import ResponseFormat
from fastdeploy_lp.guided_decoding.params import GuidedDecodingParams
from fastdeploy_lp.sampling_params import SamplingParams

# Body fields, and their names in GuidedDecodingParams.
KINDS = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}


class GuidedRequest(GenerationRequest):
    """A body that may constrain the form of its outputs, by at most one of these fields."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = self.guided_fields
        if self.response_format is not None and self.response_format.type != "text":
            given.append("response_format")
        if len(given) > 1:
            raise ValueError(f"{given[0]}: only one of {', '.join(given)} is allowed")
        return self

    @property
    def guided_fields(self) -> list[str]:
        """Names of the fields in KINDS that are set."""
        # guided_json_object: false sets no constraint.
        return [name for name in KINDS if getattr(self, name) not in (None, False)]

    @property
    def guided_decoding(self) -> GuidedDecodingParams | None:
        """The requested form; None for any text. Raises ValueError naming the field."""
        for name in self.guided_fields:
            return GuidedDecodingParams(**{KINDS[name]: getattr(self, name)})
        return self.response_format.guided_decoding if self.response_format is not None else None

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
        """Returns the body's name for a field of GuidedDecodingParams."""
        if not self.guided_fields and self.response_format is not None:
            return self.response_format.path
        return next((name for name, own in KINDS.items() if own == kind), kind)
