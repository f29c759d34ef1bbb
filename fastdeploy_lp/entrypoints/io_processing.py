"""Requests for an IO processor, which converts their data into prompts and the pooled vectors into an answer."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel, ValidationError

from fastdeploy_lp.engine.errors import EngineDeadError, InvalidRequestError, IOProcessorError, RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, InputProcessor, Prompt, Settled
from fastdeploy_lp.engine.prepare.merge import merged
from fastdeploy_lp.entrypoints.prompts import PromptInput, listed, read_prompt
from fastdeploy_lp.plugins.io_processor import NamedIOProcessor, in_thread
from fastdeploy_lp.request.outputs import PoolingRequestOutput
from fastdeploy_lp.request.pooling_params import EMBED, PoolingParams

logger = logging.getLogger(__name__)

DATA = "data"
NO_PROCESSOR = "there is no IO processor here; choose one with --io-processor-plugin"
TOO_LONG = "context_length_exceeded"

Result = Callable[[], Awaitable[PoolingRequestOutput]]


class IOProcessing:
    """Calls one IO processor; an exception from it ends only the request concerned, with an error that names it."""

    def __init__(self, inputs: InputProcessor, named: NamedIOProcessor) -> None:
        self._inputs = inputs
        self._name = named.name
        self._processor = named.processor

    async def requests(self, data: Any, params: PoolingParams | None, request_id: str) -> list[EngineRequest]:
        """Returns the engine's pooling requests for `data`, at least one.

        Raises InvalidRequestError for data or parameters that the processor refuses and for text that does not fit,
        and IOProcessorError for any other failure of the processor.
        """
        parsed = await self._parsed(data)
        settled = await self._settled(params)
        try:
            prompts = await self._processor.pre_process_async(parsed, request_id)
        except (Exception, SystemExit) as error:
            raise self._failed("pre_process", error) from error
        # In a thread, since prompts may be long texts.
        found = await in_thread(self._prompts, prompts)
        return [EngineRequest(f"{request_id}-{index}", prompt, settled) for index, prompt in enumerate(found)]

    async def answer(self, results: Sequence[Result], request_id: str) -> Any:
        """Returns the processor's answer to the outputs of its prompts; each call of one of `results` waits for one.

        Raises IOProcessorError for a failure of the processor, and the exception of `results` for one of the engine.
        """
        failures: list[Exception] = []

        async def outputs() -> AsyncGenerator[tuple[int, PoolingRequestOutput], None]:
            try:
                async with aclosing(merged([_once(result) for result in results])) as found:
                    async for each in found:
                        yield each
            except (RequestFailedError, EngineDeadError) as error:
                failures.append(error)
                raise

        try:
            async with aclosing(outputs()) as given:
                return await self._processor.post_process_async(given, request_id)
        except (Exception, SystemExit) as error:
            if failures:
                raise failures[0] from None
            raise self._failed("post_process", error) from error

    async def response(self, output: Any, envelope: Mapping[str, Any]) -> bytes:
        """Returns the fields of `envelope` and, as `data`, the processor's answer in JSON; raises IOProcessorError."""

        def encoded() -> bytes:
            found = self._processor.output_to_response(output)
            if isinstance(found, BaseModel):
                found = found.model_dump(mode="json")
            return json.dumps({**envelope, DATA: found}, allow_nan=False).encode()

        try:
            return await in_thread(encoded)
        except (Exception, SystemExit) as error:
            raise self._failed("output_to_response", error) from error

    async def _parsed(self, data: Any) -> Any:
        try:
            return await in_thread(self._processor.parse_request, data)
        except ValidationError as error:
            first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
            path = ".".join([DATA, *map(str, first["loc"])])
            raise InvalidRequestError(path, first["msg"].removeprefix("Value error, ")) from error
        except ValueError as error:
            raise InvalidRequestError(DATA, str(error)) from error
        except (Exception, SystemExit) as error:
            raise self._failed("parse_request", error) from error

    async def _settled(self, params: PoolingParams | None) -> Settled:
        try:
            found = await in_thread(self._processor.validate_or_generate_params, params)
            if not isinstance(found, PoolingParams):
                raise TypeError(f"must return PoolingParams, not {type(found).__name__}")
        except ValueError as error:
            field, colon, reason = str(error).partition(": ")
            raise InvalidRequestError(field if colon else None, reason if colon else field) from error
        except (Exception, SystemExit) as error:
            raise self._failed("validate_or_generate_params", error) from error
        return self._inputs.settle_pooling(found)

    def _prompts(self, given: Any) -> list[Prompt]:
        try:
            many = listed(given)
            if not many:
                raise ValueError("no prompt was made of the data")
        except ValueError as error:
            raise self._failed("pre_process", error) from error
        return [self._prompt(prompt, path) for path, prompt in many]

    def _prompt(self, prompt: PromptInput, path: str) -> Prompt:
        try:
            return read_prompt(self._inputs, prompt, path, pooled=True)
        except InvalidRequestError as error:
            # The client causes errors in a text and any excess length; the processor causes a wrong form.
            if isinstance(prompt, str) or error.code == TOO_LONG:
                raise InvalidRequestError(DATA, f"made into {error}", error.code) from error
            raise self._failed("pre_process", error) from error

    def _failed(self, method: str, error: BaseException) -> IOProcessorError:
        message = f"IO processor {self._name} failed in {method} ({type(error).__name__})"
        logger.error("%s", message, exc_info=error)
        return IOProcessorError(message)


def data_processing(
    inputs: InputProcessor,
    io_processor: NamedIOProcessor | None,
    given: Mapping[str, Any],
    tokenization_kwargs: Mapping[str, Any] | None,
) -> IOProcessing:
    """Returns an `IOProcessing`; raises InvalidRequestError for anything besides `data`, or without an IO processor."""
    if tokenization_kwargs:
        raise InvalidRequestError("tokenization_kwargs", f"is not allowed together with {DATA}")
    unknown = sorted(map(str, given.keys() - {DATA}))
    if unknown:
        raise InvalidRequestError(unknown[0], f"is not allowed together with {DATA}")
    if io_processor is None:
        raise InvalidRequestError(DATA, NO_PROCESSOR)
    return IOProcessing(inputs, io_processor)


def require_one_vector(params: PoolingParams) -> None:
    """Raises InvalidRequestError for a task that returns one vector per token, since an embedding is one vector."""
    if params.task != EMBED:
        raise InvalidRequestError("task", f"an embedding is one vector, {params.task} gives many; use encode")


async def _once(result: Result) -> AsyncGenerator[PoolingRequestOutput, None]:
    yield await result()
