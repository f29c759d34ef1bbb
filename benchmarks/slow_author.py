"""Logits processors whose own code takes the time that a request names; for `attacks.py`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, model_validator

from fastdeploy_lp.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp import SamplingParams
    from fastdeploy_lp.config import FDConfig


class Work(BaseModel):
    """seconds: how long the code takes. spins: in a loop in Python, else it waits."""

    seconds: float = 0.0
    spins: bool = False

    def run(self) -> None:
        """Take that long."""
        if not self.spins:
            time.sleep(self.seconds)
        until = time.perf_counter() + self.seconds * self.spins
        while time.perf_counter() < until:
            pass


class _Idle(LogitsProcessor):
    """Changes nothing."""

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits


class SlowParams(_Idle):
    """Its `Params` are slow."""

    class Params(Work):
        """Takes its time to be made."""

        @model_validator(mode="after")
        def work(self) -> SlowParams.Params:
            """Take that long."""
            self.run()
            return self


class SlowCheck(_Idle):
    """Its `validate_params` is slow."""

    Params = Work

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Take that long."""
        Work(**(sampling_params.extra_args or {})).run()


class SlowInstance:
    """A plugin with one instance a request, built in the worker by a slow constructor."""

    def __init__(self, tokenizer: Any, parameters: Work) -> None:  # noqa: ARG002 - contract
        parameters.run()

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:  # noqa: ARG002 - contract
        return logits


PLUGIN = {"logits_processor_class": SlowInstance, "parameters_model": Work}
