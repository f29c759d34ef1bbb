"""Processors with arguments of every kind, and validators of requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, Field

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import (
    DeclaredProcessor,
    LogitsProcessor,
    RequestArgsError,
    RequestArgsValidator,
    load_processors,
)
from fastdeploy_lp.request.sampling_params import SamplingParams

VOCAB_SIZE = 100


class Plain(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


class OpenProcessor(Plain):
    """Says nothing about its arguments, but that there are some."""

    accepts_any_args = True


class Flag(Plain):
    """Reads its arguments as FastDeploy's document does, and declares none of them."""

    KEY = "from_a_class_attribute"

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        for args in share_inputs["logits_processors_args"]:
            self.read = [args.enable_flag, args.get("flag_strength"), args[self.KEY], _helped(args), args.get(FLAG_KEY)]


def _helped(args: Mapping[str, Any]) -> Any:
    return args.get("from_a_helper")


FLAG_KEY = "from_a_constant"
FLAG_NAMES = ("enable_flag", "flag_strength", "from_a_class_attribute", "from_a_helper", "from_a_constant")


class WindowParams(BaseModel):
    window: int
    mode: str = "soft"


class WindowProcessor(Plain):
    Params = WindowParams


class AliasParams(BaseModel):
    max_run: int = Field(default=3, alias="max-run")


class AliasProcessor(Plain):
    Params = AliasParams


def declare(*classes: type[LogitsProcessor]) -> list[DeclaredProcessor]:
    return load_processors([spec_of(cls) for cls in classes], {spec_of(cls): cls for cls in classes})


LOGIT_BIAS = load_processors(["LogitBiasLogitsProcessor"])


def validator(*declared: DeclaredProcessor) -> RequestArgsValidator:
    return RequestArgsValidator(list(declared), VOCAB_SIZE)


def settle(checks: RequestArgsValidator, args: dict[str, Any] | None) -> dict[str, Any]:
    """What becomes of these flat arguments."""
    selection = checks.validate(SamplingParams(logits_processors_args=args))
    assert (selection.named, selection.order) == (None, None)
    return selection.flat


def refusal(checks: RequestArgsValidator, args: dict[str, Any]) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        settle(checks, args)
    error = caught.value
    assert str(error) == f"{error.path}: {error.reason}"
    assert "\n" not in str(error)
    return error


def named_refusal(checks: RequestArgsValidator, **form: Any) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(**form))
    assert "\n" not in str(caught.value)
    return caught.value
