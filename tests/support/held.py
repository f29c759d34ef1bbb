"""Logits processors whose own code waits until a test lets it go on, or raises what the test names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, field_validator

from fastdeploy_lp import SamplingParams
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor

if TYPE_CHECKING:
    from paddle import Tensor

ERRORS = {error.__name__: error for error in (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit)}


class Held(BaseModel):
    """gate: a named pipe, which is read to its end. error: what is raised then."""

    gate: str | None = None
    error: str | None = None

    def passes(self) -> None:
        """Wait for the end of what a test writes into the pipe."""
        if self.gate is not None:
            Path(self.gate).read_bytes()
        if self.error is not None:
            raise ERRORS[self.error]


class _Idle(LogitsProcessor):
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits


class HeldParams(_Idle):
    class Params(Held):
        @field_validator("gate", "error")
        @classmethod
        def holds(cls, value: str | None, info: Any) -> str | None:
            Held(**{info.field_name: value}).passes()
            return value


class HeldCheck(_Idle):
    Params = Held

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        Held(**(sampling_params.extra_args or {})).passes()


class HeldInstance:
    """Built once where arguments are tried, and in the worker for each request."""

    def __init__(self, tokenizer: Any, parameters: Held) -> None:
        parameters.passes()

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        return logits


PLUGIN = {"logits_processor_class": HeldInstance, "parameters_model": Held}
SPECS = ["support.held:HeldParams", "support.held:HeldCheck", "HeldInstance=support.held:PLUGIN"]
NAMES = ["HeldParams", "HeldCheck", "HeldInstance"]
