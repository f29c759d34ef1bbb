"""`SamplingParams` under vLLM's name, with vLLM's defaults."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.guided_decoding.params import GuidedDecodingParams
from fastdeploy_lp.sampling_params import SamplingParams as OwnParams

DEFAULT_MAX_TOKENS = 16

StructuredOutputsParams = GuidedDecodingParams


class _Named(type):
    """Builds this server's objects: the parameters that processors receive are instances of this name, too."""

    def __call__(cls, **given: Any) -> OwnParams:
        """Returns parameters with `max_tokens` 16 unless it is passed; raises as this server's class does."""
        if "structured_outputs" in given:
            given["guided_decoding"] = given.pop("structured_outputs")
        return OwnParams(**({"max_tokens": DEFAULT_MAX_TOKENS} | given))

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, OwnParams)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, OwnParams)


class SamplingParams(metaclass=_Named):
    """This server's `SamplingParams`, built with vLLM's default length and under vLLM's field names.

    structured_outputs: vLLM's name of `guided_decoding`.
    """


def default_params() -> OwnParams:
    """Returns the parameters of a request without any."""
    return OwnParams(max_tokens=DEFAULT_MAX_TOKENS)
