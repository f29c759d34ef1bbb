"""The contract of IO processors, which convert between a request's data and the model's, and the search for a named
one."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from typing_extensions import ParamSpec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.plugins.loader import call, failure, load_class, load_named
from fastdeploy_lp.plugins.plugin import LoadedPlugin, Plugin, PluginError, PluginGroup
from fastdeploy_lp.request.outputs import PoolingRequestOutput
from fastdeploy_lp.request.pooling_params import PoolingParams

# A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
PluginPrompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Input = TypeVar("Input")
Output = TypeVar("Output")
Result = TypeVar("Result")
Params = ParamSpec("Params")


class IOProcessor(ABC, Generic[Input, Output]):
    """Converts request data to prompts for pooling, and the pooled results to a response, both in its own formats.

    Runs in the API process. Methods that are not coroutines run in threads, so that long work delays no other request;
    several requests may run a method at the same time. An exception in a method ends only its own request.
    """

    def __init__(self, fd_config: FDConfig) -> None:
        """Runs before the model loads; an exception aborts the start."""
        self.fd_config = fd_config

    @abstractmethod
    def parse_request(self, data: Any) -> Input:
        """Returns the validated input from `data`, a request's own JSON.

        Raises ValueError (pydantic's ValidationError is one) for invalid data: status 400 with its text.
        """

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Returns the pooling parameters of the prompts; `params`: the request's parameters, or None.

        Raises ValueError, "field: reason", for invalid values: status 400.
        """
        return params or PoolingParams()

    @abstractmethod
    def pre_process(self, prompt: Input, request_id: str | None = None) -> PluginPrompt | Sequence[PluginPrompt]:
        """Returns the prompt or prompts of a validated input."""

    async def pre_process_async(
        self, prompt: Input, request_id: str | None = None
    ) -> PluginPrompt | Sequence[PluginPrompt]:
        """As `pre_process`, for processors that wait for something; runs on the event loop."""
        return await in_thread(self.pre_process, prompt, request_id)

    @abstractmethod
    def post_process(self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None) -> Output:
        """Returns the response; `model_output` has one entry per prompt, in order."""

    async def post_process_async(
        self, model_output: AsyncIterator[tuple[int, PoolingRequestOutput]], request_id: str | None = None
    ) -> Output:
        """As `post_process`, from entries as they arrive, each with its prompt's index; runs on the event loop."""
        by_place = {place: output async for place, output in model_output}
        return await in_thread(self.post_process, [by_place[place] for place in sorted(by_place)], request_id)

    def output_to_response(self, output: Output) -> Any:
        """Returns the `data` field of an HTTP response: JSON, or a pydantic model."""
        return output


async def in_thread(function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Calls a plugin's function in a thread; raises its exception."""

    def call() -> tuple[Result | None, BaseException | None]:
        # A future does not accept StopIteration, and would wait forever.
        try:
            return function(*args, **kwargs), None
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            return None, error

    result, error = await asyncio.to_thread(call)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedIOProcessor:
    """An IO processor under its plugin's name."""

    name: str
    processor: IOProcessor[Any, Any]


@dataclass(frozen=True)
class IOProcessorSource:
    """A plugin and its class."""

    plugin: Plugin
    found: type[IOProcessor[Any, Any]]

    def build(self, fd_config: FDConfig) -> NamedIOProcessor:
        """Builds the processor; logs and raises PluginError if that fails."""
        try:
            return NamedIOProcessor(self.plugin.name, self.found(fd_config))
        except (Exception, SystemExit) as error:
            raise failure(self.plugin, "cannot be made", error) from error


def find_io_processor(name: str) -> IOProcessorSource:
    """Returns the plugin of this name; imports no other plugin.

    Its entry point is a function that returns "module:Class", that string, or the class. Raises UnknownPluginError
    listing the existing names, and PluginError for a plugin that cannot be used.
    """
    return io_processor_of(load_named(PluginGroup.IO_PROCESSOR, name))


def io_processor_of(loaded: LoadedPlugin) -> IOProcessorSource:
    """Returns the class of a plugin; raises PluginError for a plugin that cannot be used."""
    found = loaded.found
    if not isinstance(found, (type, str)):
        found = call(loaded)
    return IOProcessorSource(loaded.plugin, _class_of(found, loaded))


def _class_of(found: object, loaded: LoadedPlugin) -> type[IOProcessor[Any, Any]]:
    try:
        if isinstance(found, type):
            return _require_io_processor(found)
        return _require_io_processor(load_class(found))  # type: ignore[arg-type]
    except ValueError as error:
        refused = PluginError(loaded.plugin, f"{loaded.plugin.value} leads to no IO processor: {error}")
        logger.error("%s", refused, exc_info=error.__cause__)
        raise refused from error


def _require_io_processor(found: type) -> type[IOProcessor[Any, Any]]:
    if not issubclass(found, IOProcessor):
        raise ValueError(f"{found.__name__} is not derived from fastdeploy_lp.IOProcessor")
    absent = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
    if absent:
        raise ValueError(f"{found.__name__} does not define {absent}")
    return found
