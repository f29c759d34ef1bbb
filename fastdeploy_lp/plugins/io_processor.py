"""The contract of IO processors: what stands between a request's own data and the model's prompts and vectors."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from typing_extensions import ParamSpec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.outputs import PoolingRequestOutput
from fastdeploy_lp.pooling_params import PoolingParams

# A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
PluginPrompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Input = TypeVar("Input")
Output = TypeVar("Output")
Result = TypeVar("Result")
Params = ParamSpec("Params")


class IOProcessor(ABC, Generic[Input, Output]):
    """Turns data of its own into prompts that are pooled, and what they come to into an answer of its own.

    Lives in the API process. Methods that are not coroutines run in threads, so that long work holds up nobody else;
    several requests may be inside at the same time. What a method raises ends its request alone.
    """

    def __init__(self, fd_config: FDConfig) -> None:
        """Before the model loads; what it raises stops the start."""
        self.fd_config = fd_config

    @abstractmethod
    def parse_request(self, data: Any) -> Input:
        """The checked input that `data`, a request's own JSON, stands for.

        Raises ValueError, which pydantic's ValidationError is, for data that cannot be used: status 400 with its text.
        """

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """How prompts are pooled; `params`: what the request says of it, None for nothing.

        Raises ValueError, "field: reason", for what cannot be used: status 400.
        """
        return params or PoolingParams()

    @abstractmethod
    def pre_process(self, prompt: Input, request_id: str | None = None) -> PluginPrompt | Sequence[PluginPrompt]:
        """The prompt or prompts of a checked input."""

    async def pre_process_async(
        self, prompt: Input, request_id: str | None = None
    ) -> PluginPrompt | Sequence[PluginPrompt]:
        """The same for those who have to wait for something; runs on the event loop."""
        return await in_thread(self.pre_process, prompt, request_id)

    @abstractmethod
    def post_process(self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None) -> Output:
        """The answer; `model_output` has one entry a prompt, in order."""

    async def post_process_async(
        self, model_output: AsyncIterator[tuple[int, PoolingRequestOutput]], request_id: str | None = None
    ) -> Output:
        """The same from entries as they come, each with its prompt's place; runs on the event loop."""
        by_place = {place: output async for place, output in model_output}
        return await in_thread(self.post_process, [by_place[place] for place in sorted(by_place)], request_id)

    def output_to_response(self, output: Output) -> Any:
        """What stands under `data` in an HTTP answer: JSON, or a pydantic model."""
        return output


async def in_thread(function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Call a plugin's function in a thread; raises what it raises."""

    def call() -> tuple[Result | None, BaseException | None]:
        # A future takes no StopIteration, and waits for ever if it is given one.
        try:
            return function(*args, **kwargs), None
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            return None, error

    result, error = await asyncio.to_thread(call)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
