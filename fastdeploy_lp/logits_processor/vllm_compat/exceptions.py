"""vLLM's request errors; one raised in `validate_params` refuses the request with status 400."""

from __future__ import annotations


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
