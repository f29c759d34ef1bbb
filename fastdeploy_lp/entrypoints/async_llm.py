"""The engine inside an asyncio program, such as a web application."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from typing_extensions import Unpack

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.client.processor_states import ProcessorInfo
from fastdeploy_lp.engine.client.work import Work
from fastdeploy_lp.engine.errors import EngineDeadError, InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt
from fastdeploy_lp.entrypoints.chat_tokenizer import ChatTokenizer
from fastdeploy_lp.entrypoints.declare import declare
from fastdeploy_lp.entrypoints.io_processing import DATA, IOProcessing, data_processing, require_one_vector
from fastdeploy_lp.entrypoints.prompts import ChatKeywords, Conversation, PromptInput, read_prompt
from fastdeploy_lp.plugins.stat_logger import StatLoggerFactory
from fastdeploy_lp.request.outputs import EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.prompt_options import PromptOptions
from fastdeploy_lp.request.sampling_params import RequestOutputKind, SamplingParams
from fastdeploy_lp.startup.engine_args import EngineArgs


class AsyncLLM:
    """A model in a separate worker process, for concurrent requests on one event loop.

    Takes the same arguments as `LLM`. The first request starts the worker, unless `start` did. Call `shutdown` at the
    end, or use `async with`.
    """

    def __init__(
        self,
        model: str,
        *,
        logits_processors: Sequence[str | type] = (),
        stat_loggers: Sequence[StatLoggerFactory] = (),
        **engine_args: Any,
    ) -> None:
        self._setup = declare(model, logits_processors, engine_args, stat_loggers)
        self._starting = asyncio.Lock()
        self._first_start: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._shut_down = False
        self._tokenizer: ChatTokenizer | None = None
        self._running: dict[str, RunningRequest] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *, stat_loggers: Sequence[StatLoggerFactory] = ()) -> AsyncLLM:
        """Creates one from the command line's options; `logits_processors` may also hold classes."""
        options = vars(engine_args).copy()
        processors = options.pop("logits_processors")
        return cls(options.pop("model"), logits_processors=processors, stat_loggers=stat_loggers, **options)

    async def start(self) -> None:
        """Starts the worker and waits until the model is loaded; raises EngineStartError."""
        async with self._starting:
            if self._engine is None:
                setup = self._setup
                engine = make_engine(setup.fd_config, setup.declared, setup.stat_loggers)
                try:
                    await engine.start()
                except BaseException:
                    # Some of several workers may have started.
                    await engine.shutdown()
                    raise
                self._engine = engine

    async def generate(
        self,
        prompt: PromptInput | Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yields the answer to a prompt as it grows; `sampling_params.output_kind` selects the content of each output.

        prompt: a text, token ids, `{"prompt": …}`, `{"prompt_token_ids": …}`, or the messages of a chat.
        request_id: a name for `abort`; None generates one.
        tokenization_kwargs: the fields of `PromptOptions`, as for `LLM.generate`.

        Leaving the iteration early aborts the request. Raises InvalidRequestError (a ValueError) for an invalid
        request, QueueFullError when `max_waiting_requests` already wait, RequestFailedError for a request that fails
        while running, EngineDeadError without a worker, and, on the first request, the exceptions of `start`.
        """
        inputs = (await self._started()).inputs
        chat = isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
        options = PromptOptions.of(tokenization_kwargs, (sampling_params or SamplingParams()).max_tokens)
        tokens = (
            inputs.chat_prompt(prompt, None, options)  # type: ignore[arg-type]
            if chat
            else read_prompt(inputs, prompt, options=options)  # type: ignore[arg-type]
        )
        async with aclosing(self._answer(tokens, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **chat_options: Unpack[ChatKeywords],
    ) -> AsyncIterator[RequestOutput]:
        """Yields the answer to a conversation, as `generate` does; takes the options of `LLM.chat`."""
        options = PromptOptions.of(tokenization_kwargs, (sampling_params or SamplingParams()).max_tokens)
        prompt = (await self._started()).inputs.chat_prompt(messages, ChatOptions(**chat_options), options)
        async with aclosing(self._answer(prompt, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def embed(
        self,
        prompt: str | Sequence[int],
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> EmbeddingRequestOutput:
        """Returns the embedding of a text or token-id prompt; cancellation aborts it. Raises as `generate` does."""
        options = PromptOptions.of(tokenization_kwargs)
        tokens = (await self._started()).inputs.pooling_prompt(prompt, options=options)
        params = pooling_params or PoolingParams()
        require_one_vector(params)
        return EmbeddingRequestOutput.of(await self._pool(tokens, params, request_id))

    async def encode(
        self,
        prompt: PromptInput | Mapping[str, Any],
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> PoolingRequestOutput[Any]:
        """Returns a prompt's pooled hidden states, or the IO processor's answer to `{"data": …}`; see `LLM.encode`.

        Cancellation aborts the request. Raises as `generate` does.
        """
        inputs = (await self._started()).inputs
        if isinstance(prompt, Mapping) and DATA in prompt:
            processing = data_processing(inputs, self._setup.io_processor, prompt, tokenization_kwargs)
            return await self._process(processing, prompt[DATA], pooling_params, request_id)
        tokens = read_prompt(inputs, prompt, options=PromptOptions.of(tokenization_kwargs), pooled=True)
        return await self._pool(tokens, pooling_params or PoolingParams(), request_id)

    async def get_tokenizer(self) -> ChatTokenizer:
        """Returns the model's tokenizer; raises ValueError with `skip_tokenizer_init`, else as `start` does."""
        if self._tokenizer is None:
            self._tokenizer = ChatTokenizer(await self._started())
        return self._tokenizer

    def abort(self, request_id: str) -> None:
        """Ends a request: its iteration finishes with reason "abort"; `embed` and `encode` raise RequestFailedError.

        Does nothing for a request that is not running.
        """
        running = self._running.get(request_id)
        if running is not None:
            running.abort()

    @property
    def logits_processors(self) -> list[ProcessorInfo]:
        """The declared logits processors in execution order, with their parameters, state and counters."""
        return self._require_engine().processors.describe()

    async def reset_logits_processor(self, name: str) -> None:
        """Returns a quarantined logits processor to service; raises KeyError for a name that is not declared."""
        await self._require_engine().reset_processor(name)

    async def shutdown(self) -> None:
        """Ends the worker, after waiting for a start in progress; further calls do nothing."""
        async with self._starting:
            self._shut_down = True
            if self._engine is not None:
                await self._engine.shutdown()

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def _pool(self, prompt: Prompt, params: PoolingParams, request_id: str | None) -> PoolingRequestOutput:
        engine = self._require_engine()
        settled = engine.inputs.settle_pooling(params)
        with self._named(request_id) as running:
            (pooling,) = await engine.pool([EngineRequest(running.unique_id, prompt, settled)])
            running.begin(pooling)
            output = await pooling.result()
        output.request_id = running.name
        return output

    async def _process(
        self, processing: IOProcessing, data: Any, params: PoolingParams | None, request_id: str | None
    ) -> PoolingRequestOutput[Any]:
        with self._named(request_id) as running:
            poolings: list[Pooling] = []
            try:
                requests = await processing.requests(data, params, running.unique_id)
                poolings = await self._require_engine().pool(requests)
                running.begin(*poolings)
                output = await processing.answer([each.result for each in poolings], running.unique_id)
            finally:
                for each in poolings:
                    each.close()
        return PoolingRequestOutput(running.name, output, [])

    async def _answer(
        self, prompt: Prompt, sampling_params: SamplingParams | None, request_id: str | None
    ) -> AsyncGenerator[RequestOutput, None]:
        engine, params = self._require_engine(), sampling_params or SamplingParams()
        with self._named(request_id) as running:
            request = EngineRequest(running.unique_id, prompt, await engine.preparation.settle(params, prompt))
            wakes = params.output_kind is not RequestOutputKind.FINAL_ONLY
            (generation,) = await engine.generate([request], stream=wakes)
            running.begin(generation)
            async with aclosing(generation.outputs(params.output_kind)) as outputs:
                async for output in outputs:
                    output.request_id = running.name
                    yield output

    @contextmanager
    def _named(self, request_id: str | None) -> Iterator[RunningRequest]:
        """Registers a request under its name while it runs; raises InvalidRequestError for a name already in use."""
        if request_id in self._running:
            raise InvalidRequestError("request_id", f"{request_id!r} is running already")
        running = RunningRequest(request_id)
        self._running[running.name] = running
        try:
            yield running
        finally:
            del self._running[running.name]

    async def _started(self) -> Engine:
        """Returns the engine; the first caller starts it, concurrent callers wait. Raises the exceptions of `start`.

        A request cancelled while waiting does not cancel the start, which other requests and `shutdown` may await.
        """
        if self._engine is None:
            if self._shut_down:
                raise EngineDeadError("AsyncLLM was shut down")
            if self._first_start is None or self._first_start.done():
                self._first_start = asyncio.create_task(self.start())
                self._first_start.add_done_callback(_read_outcome)
            await asyncio.shield(self._first_start)
        return self._require_engine()

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("AsyncLLM: call `await start()` first")
        return self._engine


def _read_outcome(start: asyncio.Task[None]) -> None:
    """Reads the start's exception, so that asyncio logs no warning when no request awaits it any more."""
    if not start.cancelled():
        start.exception()


class RunningRequest:
    """A registered request; the caller knows it as `name`, the engine as `unique_id`."""

    def __init__(self, request_id: str | None) -> None:
        self.unique_id = f"{request_id or 'async'}-{uuid.uuid4().hex}"
        self.name = request_id or self.unique_id
        self._works: Sequence[Work] = ()
        self._aborted = False

    def begin(self, *works: Work) -> None:
        """Stores the admitted work; aborts it at once if `abort` was called before."""
        self._works = works
        if self._aborted:
            self.abort()

    def abort(self) -> None:
        """Ends the request, or, before its admission, as soon as it is admitted."""
        self._aborted = True
        for work in self._works:
            work.abort()
