"""The option `override_generation_config`: sampling of requests that do not set it."""

from __future__ import annotations

from fastdeploy_lp.config.option_values import json_object
from fastdeploy_lp.request.sampling_params import SamplingParams

FIELDS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def default_sampling(text: str) -> dict[str, float]:
    """Returns the fields of a JSON object; raises ValueError for other text, fields and values."""
    given = json_object(text, '{"temperature": 0.2}')
    for name in given:
        if name not in FIELDS:
            raise ValueError(f"{name} is not allowed; allowed are {', '.join(FIELDS)}")
    SamplingParams(**given)
    return given


def require_default_sampling(name: str, value: str) -> None:
    """Raise ValueError naming the option unless `default_sampling` accepts its value."""
    try:
        default_sampling(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
