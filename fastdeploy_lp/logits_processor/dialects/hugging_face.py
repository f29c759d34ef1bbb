"""Hugging Face's torch processors: `cls(**parameters)`, called `(input_ids [1, n], scores [1, vocab_size])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor, RowProcessor
from fastdeploy_lp.logits_processor.dialects.torch_bridge import to_paddle, to_torch
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.sampling_params import SamplingParams


class HuggingFaceDialect(Dialect):
    """One instance a request that names the processor, built from the request's parameters."""

    name = "torch"
    by_name_only = True

    def recognizes(self, found: Any) -> bool:
        """Subclasses of `transformers.LogitsProcessor`, told by where their base class comes from."""
        return isinstance(found, type) and any(
            base.__name__ == "LogitsProcessor" and base.__module__.partition(".")[0] == "transformers"
            for base in found.__mro__[1:]
        )

    def check(self, found: Any, spec: str) -> None:
        """A class that can be called with input ids and scores."""
        if "__call__" not in dir(found):
            raise LogitsProcessorSpecError(spec, "has no __call__(self, input_ids, scores)")

    def validate(self, found: Any, sampling_params: SamplingParams) -> None:
        """Build it once: its constructor is what knows which parameters are right."""
        try:
            found(**(sampling_params.extra_args or {}))
        except TypeError as error:
            raise ValueError(str(error)) from None

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:  # noqa: ARG002 - contract
        """Makes instances as requests come."""
        return HuggingFaceProcessor(found)


class HuggingFaceProcessor(PerRequestProcessor):
    """A Hugging Face class as the chain sees it."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._class = cls

    def new_instance(self, args: ProcessorArgs) -> RowProcessor:
        """`cls(**parameters)` between a torch view of the row and what it returns."""
        import torch

        instance = self._class(**args)

        def process(prompt_ids: list[int], output_ids: list[int], row: Tensor) -> Tensor:
            scores = row.unsqueeze(0)
            input_ids = torch.tensor([prompt_ids + output_ids])
            return to_paddle(instance(input_ids, to_torch(scores)), scores).squeeze(0)

        return process
