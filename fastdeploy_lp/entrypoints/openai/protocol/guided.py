"""What bodies say of the form of their outputs."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest, Texts
from fastdeploy_lp.entrypoints.openai.protocol.response_format import ResponseFormat
from fastdeploy_lp.guided_decoding.params import GuidedDecodingParams
from fastdeploy_lp.sampling_params import SamplingParams

# The names of the same in SamplingParams.
KINDS = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}


class GuidedRequest(GenerationRequest):
    """A body whose outputs may have to have a form: one of these fields says which."""

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
        """Those of KINDS that ask for something."""
        # false asks for no JSON object.
        return [name for name in KINDS if getattr(self, name) not in (None, False)]

    @property
    def guided_decoding(self) -> GuidedDecodingParams | None:
        """The form that is asked for; None for any text. Raises ValueError naming the field."""
        for name in self.guided_fields:
            return GuidedDecodingParams(**{KINDS[name]: getattr(self, name)})
        return self.response_format.guided_decoding if self.response_format is not None else None

    def sampling_params(self) -> SamplingParams:
        """With the form that is asked for; raises ValueError naming the field."""
        params = super().sampling_params()
        params.guided_decoding = self.guided_decoding
        return params

    def sent_name(self, field: str) -> str:
        """`guided_decoding.regex` comes as `guided_regex`, or by the response's format."""
        first, _, rest = field.partition(".")
        if first != "guided_decoding":
            return super().sent_name(field)
        kind, dot, path = rest.partition(".")
        return f"{self.sent_kind(kind)}{dot}{path}"

    def sent_kind(self, kind: str) -> str:
        """The body's name for a field of GuidedDecodingParams."""
        if not self.guided_fields and self.response_format is not None:
            return self.response_format.path
        return next((name for name, own in KINDS.items() if own == kind), kind)
