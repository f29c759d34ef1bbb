"""Checks of authors' own that raise something else than they should."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors, vllm_v1
from fastdeploy_lp.request.sampling_params import SamplingParams


class Hasty(vllm_v1.AdapterLogitsProcessor):
    """Compares what it was given before it looks at its type."""

    accepts_any_args = True

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if sampling_params.extra_args and sampling_params.extra_args["most"] > 9:
            raise ValueError("most: at most 9")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> None: ...


class Parameters(BaseModel):
    most: Any

    @field_validator("most")
    @classmethod
    def _is_small(cls, most: Any) -> Any:
        return len(most)


class HastyPlugin:
    def __init__(self, tokenizer: Any, parameters: Any) -> None: ...

    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        return logits


@pytest.mark.parametrize(
    ("form", "path", "reason"),
    [
        ({"logits_processors_args": {"most": "ten"}}, "logits_processors_args", "Hasty: TypeError: "),
        ({"logits_processors": {"Hasty": {"least": 1}}}, "logits_processors.Hasty", "Hasty: KeyError: 'most'"),
        ({"logits_processors": {"HastyPlugin": {"most": 5}}}, "logits_processors.HastyPlugin", "TypeError: "),
    ],
)
def test_a_check_that_fails_itself_refuses_the_request(form: dict[str, Any], path: str, reason: str) -> None:
    plugin = {"logits_processor_class": HastyPlugin, "parameters_model": Parameters}
    checks = RequestArgsValidator(load_processors(["m:A", "m:B"], {"m:A": Hasty, "m:B": plugin}), 512)
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(**form))
    assert caught.value.path == path
    assert caught.value.reason.startswith(reason)
