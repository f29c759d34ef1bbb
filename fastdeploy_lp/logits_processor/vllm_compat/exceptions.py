"""vLLM's errors of requests; raised in `validate_params` they refuse the request with status 400."""

from __future__ import annotations


class VLLMError(Exception):
    """Base of vLLM's errors."""


class VLLMClientError(VLLMError):
    """An error of the request."""


class VLLMServerError(VLLMError):
    """An error of the server."""


class VLLMValidationError(VLLMClientError, ValueError):
    """A parameter that cannot be used.

    parameter: its name. value: what was sent. Both are None where they are not known.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        """The message and what is known of the parameter."""
        named = {"parameter": self.parameter, "value": self.value}
        details = ", ".join(f"{name}={value}" for name, value in named.items() if value is not None)
        return super().__str__() + (f" ({details})" if details else "")


class VLLMUnprocessableEntityError(VLLMValidationError):
    """A request that can be read and not served."""


class VLLMNotFoundError(VLLMClientError):
    """A request for a thing that there is not."""
