"""Interface of a dialect, a way to write logits processors, for the chain and the API process."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ValidationError

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.late_values import LateValue

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_tokenizer import ModelTokenizer
    from fastdeploy_lp.request.sampling_params import SamplingParams


@dataclass(frozen=True)
class ModelFacts:
    """`vocab_size`: columns of the logits. `tokenizer`: None without a model's directory.

    on_device: True where processors serve; where requests are only checked, rows are on the CPU.
    """

    vocab_size: int
    tokenizer: ModelTokenizer | None = None
    on_device: bool = False

    @classmethod
    def of(cls, fd_config: FDConfig) -> ModelFacts:
        """Returns the facts about the served model, for the process that serves it."""
        return cls(fd_config.model_config.vocab_size, fd_config.tokenizer, on_device=True)


class Dialect(ABC):
    """Recognizes, checks and wraps the objects of one dialect that SPECs name."""

    name: ClassVar[str]
    by_name_only: ClassVar[bool] = False
    """True if a request can use the processor only by naming it, never through flat arguments."""

    may_draw: ClassVar[bool] = False
    """True if its processors may have the stage "draw"."""

    tries_instances: ClassVar[bool] = False
    """True if `validate` makes an instance for the request: an author's code runs without a `validate_params`."""

    bounds_memory: ClassVar[bool] = False
    """True if the dialect itself bounds the memory of its processors, so that the chain need not watch it."""

    @abstractmethod
    def recognizes(self, found: Any) -> bool:
        """Returns True if `found` is written in this dialect."""

    @abstractmethod
    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for an object that is recognized but cannot run."""

    def params_model(self, found: Any) -> type[BaseModel] | None:  # noqa: ARG002 - others need it
        """Returns the model of the processor's arguments, None if it has none."""
        return None

    def why_it_needs_args(self, found: Any) -> str | None:
        """Returns the reason why no instance can be made without arguments, None if one can be made."""
        model = self.params_model(found)
        try:
            if model is not None:
                model.model_validate({})
            else:
                inspect.signature(self.class_of(found)).bind()
        except Exception as error:  # noqa: BLE001 - an author's validator may raise anything
            return _one_reason(error)
        return None

    def ready_validation(self) -> None:  # noqa: B027 - most need nothing
        """Imports the modules that `validate` needs; runs once before the first `validate` of a process."""

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:  # noqa: ARG002 - others need it
        """Raises ValueError for a request that the processor cannot serve; `extra_args` are its arguments."""
        found.validate_params(sampling_params)

    def late_value(self, found: Any) -> LateValue | None:  # noqa: ARG002 - others need it
        """Returns the bounds of the processor's `prepare`, None if it has none."""
        return None

    @abstractmethod
    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns a native processor that runs `found`."""

    def class_of(self, found: Any) -> Any:
        """Returns the class or function that has the processor's name and documentation."""
        if not isinstance(found, type):
            raise TypeError(f"{found!r} is no class")
        return found


def _one_reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join([".".join(map(str, first["loc"])), first["msg"]] if first["loc"] else [first["msg"]])
    return str(error)


def require_methods(cls: type, spec: str, base: str, constructor: tuple[str, ...]) -> None:
    """Raises LogitsProcessorSpecError unless the class has no abstract methods and takes `constructor`'s arguments."""
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        renamed = "; rename __call__ to apply" if "apply" in missing and "__call__" in dir(cls) else ""
        raise LogitsProcessorSpecError(
            spec, f"has no {', '.join(missing)}, which every {base} needs: add a method of that name{renamed}"
        )
    try:
        inspect.signature(cls).bind(*constructor)
    except TypeError as error:
        wanted = ", ".join(("self", *constructor))
        raise LogitsProcessorSpecError(
            spec, f"cannot be built ({error}): write its constructor as def __init__({wanted})"
        ) from None
