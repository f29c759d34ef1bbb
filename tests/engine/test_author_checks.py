"""Processors' own checks of requests: beside the event loop, bounded in time, and every exception the request's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from paddle import Tensor
from pydantic import BaseModel, field_validator
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.engine.errors import InvalidRequestError, ProcessorUnavailableError
from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.preparation import RequestPreparation
from fastdeploy_lp.logits_processor import LogitsProcessor, load_processors
from fastdeploy_lp.sampling_params import SamplingParams

TURNS = 100
ERRORS = [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), GeneratorExit(), StopIteration(), KeyError(1)]


class Gate:
    """Author code passes here: it says that it has begun, and waits or raises as a test has set."""

    opened = threading.Event()
    reached = threading.Event()
    error: ClassVar[BaseException | None] = None

    @classmethod
    def reset(cls) -> None:
        cls.opened, cls.reached, cls.error = threading.Event(), threading.Event(), None

    @classmethod
    def passes(cls) -> None:
        opened = cls.opened
        cls.reached.set()
        if cls.error is not None:
            raise cls.error
        opened.wait()


class Native(LogitsProcessor):
    accepts_any_args = True

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits


class Checks(Native):
    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:  # noqa: ARG003 - contract
        Gate.passes()


class Models(Native):
    class Params(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, value: int) -> int:
            Gate.passes()
            return value


CLASSES = [Checks, Models]


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    Gate.reset()
    yield
    Gate.opened.set()


@asynccontextmanager
async def preparing(cls: type, timeout: float) -> AsyncIterator[RequestPreparation]:
    config = tiny_fd_config(policy=StructuredOutputsConfig(code_timeout=timeout))
    config = replace(config, model_config=replace(config.model_config, skip_tokenizer_init=True))
    spec = f"m:{cls.__name__}"
    preparation = RequestPreparation(config, load_processors([spec, "LogitBiasLogitsProcessor"], {spec: cls}))
    try:
        yield preparation
    finally:
        await preparation.close()


def asking(cls: type) -> SamplingParams:
    return SamplingParams(logits_processors={cls.__name__: {"x": 1}})


PROMPT = Prompt([1], None)
BIASED = SamplingParams(logits_processors={"LogitBiasLogitsProcessor": {"logit_bias": {"1": 2.0}}})


@pytest.mark.parametrize("cls", CLASSES)
def test_the_loop_serves_others_while_a_check_is_held(cls: type) -> None:
    async def scenario() -> None:
        async with preparing(cls, 60.0) as preparation:
            asked = asyncio.create_task(preparation.settle(asking(cls), PROMPT))
            # A thread is in the check now: on the loop, it would have held up what waits here.
            assert await asyncio.to_thread(Gate.reached.wait, 60.0)
            for _ in range(TURNS):
                await preparation.settle(BIASED, PROMPT)
            assert not asked.done()
            Gate.opened.set()
            assert cls.__name__ in ((await asked).selection.named or {})

    asyncio.run(scenario())


@pytest.mark.parametrize("cls", CLASSES)
def test_a_check_that_does_not_return_makes_its_processor_unavailable(cls: type) -> None:
    async def scenario() -> None:
        async with preparing(cls, 0.05) as preparation:
            for _ in range(6):
                with pytest.raises(ProcessorUnavailableError, match=f"logits processor {cls.__name__}: "):
                    await preparation.settle(asking(cls), PROMPT)
            await preparation.settle(BIASED, PROMPT)

    asyncio.run(scenario())


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_check_raises_refuses_its_request_alone(cls: type, error: BaseException) -> None:
    async def scenario() -> None:
        async with preparing(cls, 60.0) as preparation:
            Gate.error = error
            with pytest.raises(InvalidRequestError, match=type(error).__name__) as refused:
                await preparation.settle(asking(cls), PROMPT)
            assert (refused.value.param or "").startswith(f"logits_processors.{cls.__name__}")
            await preparation.settle(BIASED, PROMPT)

    asyncio.run(scenario())


def test_a_client_that_leaves_ends_no_other_check() -> None:
    async def scenario() -> None:
        async with preparing(Checks, 60.0) as preparation:
            left = asyncio.create_task(preparation.settle(asking(Checks), PROMPT))
            assert await asyncio.to_thread(Gate.reached.wait, 60.0)
            stays = asyncio.create_task(preparation.settle(asking(Checks), PROMPT))
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            Gate.opened.set()
            await stays

    asyncio.run(scenario())
