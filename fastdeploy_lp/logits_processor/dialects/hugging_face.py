"""Hugging Face's torch processors: `cls(**parameters)`, called `(input_ids [1, n], scores [1, vocab_size])`."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.actions import RequestActions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, ModelFacts
from fastdeploy_lp.logits_processor.dialects.parameters import request_parameters
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor, RowProcessor
from fastdeploy_lp.logits_processor.dialects.torch_bridge import beside_paddle, to_paddle, to_torch
from fastdeploy_lp.logits_processor.dialects.torch_rows import CallStyle, TorchRow, dry_run, on_row, one_thread
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.request.sampling_params import SamplingParams

LIBRARY = "transformers"
# Methods by which `generate` passes the model and the model's inputs to a processor.
_SET_UP_BY_GENERATE = ("set_model", "set_inputs")
_TWO_ROWS = "needs two rows for each sequence, with the condition and without it; a request has one"
_CHANNELS = "needs a row for each audio channel of a sequence; a request has one"
# Classes whose calls need more than a request's row, which no signature shows; by the owner of `__call__`.
_NEEDS: dict[str, str] = {
    "ClassifierFreeGuidanceLogitsProcessor": _TWO_ROWS,
    "DiaClassifierFreeGuidanceLogitsProcessor": _TWO_ROWS,
    "DiaEOSChannelFilterLogitsProcessor": _CHANNELS,
    "DiaEOSDelayPatternLogitsProcessor": _CHANNELS,
}


class TorchRowDialect(Dialect):
    """Base of dialects that call a torch processor on one request's row, one instance per request that names it."""

    by_name_only = True
    tries_instances = True

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Returns the model of the constructor parameters that a request can give; None if it takes any."""
        return request_parameters(found).model

    def process(self, found: Any, args: dict[str, Any], facts: ModelFacts) -> TorchRow:
        """Returns a new instance for a request with these arguments, as a function of a row."""
        return on_row(self.style(found), found(**request_parameters(found).arguments(args, facts)))

    def style(self, found: Any) -> CallStyle:  # noqa: ARG002 - others look at it
        """Returns the call style."""
        return CallStyle.INPUT_SCORES

    def ready_validation(self) -> None:
        """Imports torch: its time is not the author's, and on a busy machine it may exceed the limit of a check."""
        importlib.import_module("torch")

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:
        """Builds an instance and calls it on rows of zeros, to find mistakes that no signature shows."""
        try:
            process = self.process(found, dict(sampling_params.extra_args or {}), facts)
        except TypeError as error:
            raise ValueError(str(error)) from None
        dry_run(process, facts.vocab_size)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns a processor that makes instances as requests arrive."""
        return TorchRowProcessor(self, found, ModelFacts.of(fd_config))


class HuggingFaceDialect(TorchRowDialect):
    """Subclasses of transformers' `LogitsProcessor`."""

    name = "torch"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of `transformers.LogitsProcessor`, judged by the base class's module."""
        return isinstance(found, type) and any(
            base.__name__ == "LogitsProcessor" and base.__module__.partition(".")[0] == LIBRARY
            for base in found.__mro__[1:]
        )

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for a class that needs more than a request's arguments and row."""
        if inspect.isabstract(found):
            missing = ", ".join(sorted(found.__abstractmethods__))
            raise LogitsProcessorSpecError(spec, f"is abstract: it has no {missing}")
        owner = next(base for base in found.__mro__ if "__call__" in vars(base))
        if owner.__name__ == "LogitsProcessor":
            raise LogitsProcessorSpecError(spec, "has no __call__(self, input_ids, scores)")
        require_giveable(found, spec)
        hooks = [name for name in _SET_UP_BY_GENERATE if hasattr(found, name)]
        if hooks:
            needed = " and ".join(f"{name}()" for name in hooks)
            raise LogitsProcessorSpecError(spec, f"needs {needed}, which only generate() of transformers calls")
        if owner.__name__ in _NEEDS and owner.__module__.partition(".")[0] == LIBRARY:
            raise LogitsProcessorSpecError(spec, _NEEDS[owner.__name__])


def require_giveable(found: Any, spec: str, skip: int = 0) -> None:
    """Raises LogitsProcessorSpecError for required parameters that neither a request nor the server can give."""
    missing = request_parameters(found, skip).missing
    if missing:
        raise LogitsProcessorSpecError(spec, f"needs {' and '.join(missing)}, which no request can give")


class TorchRowProcessor(PerRequestProcessor):
    """Native wrapper of a torch class or function."""

    def __init__(self, dialect: TorchRowDialect, found: Any, facts: ModelFacts) -> None:
        super().__init__()
        self._dialect, self._found, self._facts = dialect, found, facts

    def new_instance(self, args: ProcessorArgs) -> RowProcessor:
        """Returns an instance that reads a torch view of the row and returns a Paddle tensor."""
        with one_thread(), beside_paddle():
            process = self._dialect.process(self._found, dict(args), self._facts)

        def process_row(prompt_ids: list[int], output_ids: list[int], row: Tensor, actions: RequestActions) -> Tensor:
            with one_thread(), beside_paddle():
                return to_paddle(process(prompt_ids, output_ids, to_torch(row), actions), row)

        return process_row
