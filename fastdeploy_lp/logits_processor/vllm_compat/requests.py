"""vLLM's requests: prompts, sampling parameters and errors."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.sampling_params import SamplingParams as OwnParams


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt


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


class VLLMError(Exception):
    """Base of vLLM's errors."""


class VLLMClientError(VLLMError):
    """An error of the request."""


class VLLMServerError(VLLMError):
    """An error of the server."""


class VLLMValidationError(VLLMClientError, ValueError):
    """A parameter that cannot be used.

    parameter: its name. value: the value sent. Each is None if unknown.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        """Returns the message with the known details of the parameter."""
        named = {"parameter": self.parameter, "value": self.value}
        details = ", ".join(f"{name}={value}" for name, value in named.items() if value is not None)
        return super().__str__() + (f" ({details})" if details else "")


class VLLMUnprocessableEntityError(VLLMValidationError):
    """A request that can be read but not served."""


class VLLMNotFoundError(VLLMClientError):
    """A request for something that does not exist."""
