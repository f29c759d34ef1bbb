"""Offline inference through synchronous calls, with the server's worker and engine client."""

from __future__ import annotations

import asyncio
import threading
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, TypeVar, overload

from tqdm import tqdm
from typing_extensions import Unpack

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.processor_states import ProcessorInfo
from fastdeploy_lp.engine.errors import (
    EngineDeadError,
    ProcessorUnavailableError,
    RequestFailedError,
    WorkerLostError,
)
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt, Settled
from fastdeploy_lp.engine.prepare.merge import merged
from fastdeploy_lp.entrypoints.chat_tokenizer import ChatTokenizer
from fastdeploy_lp.entrypoints.declare import declare
from fastdeploy_lp.entrypoints.io_processing import DATA, IOProcessing, data_processing, require_one_vector
from fastdeploy_lp.entrypoints.loop_thread import LoopThread
from fastdeploy_lp.entrypoints.prompts import ChatKeywords, Conversation, PromptInput, listed, read_prompt
from fastdeploy_lp.plugins.stat_logger import StatLoggerFactory
from fastdeploy_lp.request.outputs import CompletionOutput, EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.prompt_options import PromptOptions
from fastdeploy_lp.request.sampling_params import RequestOutputKind, SamplingParams

Result = TypeVar("Result")
AnyParams = TypeVar("AnyParams", SamplingParams, PoolingParams)
Params: TypeAlias = SamplingParams | Sequence[SamplingParams]
Progress: TypeAlias = bool | Callable[..., Any]


SETTLED_AT_ONCE = 16


class LLM:
    """A model in a separate worker process, for batches of prompts.

    model: directory, GGUF file or known name.
    logits_processors: builtin names, `module.path:ClassName`, or classes.
    stat_loggers: subclasses of `StatLoggerBase`, or functions that return an instance for (fd_config, engine_index).
    Every other keyword is a field of `EngineArgs`.

    Raises ValueError for invalid options and EngineStartError when the worker does not start. Use it as a context
    manager or call `shutdown`; the interpreter's exit also shuts it down.
    """

    def __init__(
        self,
        model: str,
        *,
        logits_processors: Sequence[str | type] = (),
        stat_loggers: Sequence[StatLoggerFactory] = (),
        **engine_args: Any,
    ) -> None:
        setup = declare(model, logits_processors, engine_args, stat_loggers)
        self._loop = LoopThread()
        try:
            self._engine: Engine = self._loop.run(
                _create, make_engine, setup.fd_config, setup.declared, setup.stat_loggers
            )
        except BaseException:
            self._loop.close()
            raise
        config = setup.fd_config.scheduler_config
        self._io_processor = setup.io_processor
        workers = setup.fd_config.parallel_config.data_parallel_size
        self._turns = asyncio.Semaphore(workers * (config.max_num_seqs + config.max_waiting_requests))
        self._finalizer = weakref.finalize(self, _shutdown, self._loop, self._engine)
        try:
            self._loop.run(self._engine.start)
        except BaseException:
            self.shutdown()
            raise

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the model's recommended sampling, or that of `override_generation_config`; named as in vLLM."""
        return SamplingParams(**self._engine.fd_config.model_config.default_sampling)  # type: ignore[arg-type]

    @cached_property
    def _tokenizer(self) -> ChatTokenizer:
        return ChatTokenizer(self._engine)

    def get_tokenizer(self) -> ChatTokenizer:
        """Returns the model's tokenizer; raises ValueError with `skip_tokenizer_init`."""
        return self._tokenizer

    @overload
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params | None = None,
        *,
        stream: Literal[False] = False,
        use_tqdm: Progress = True,
        raise_on_error: bool = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **chat_options: Unpack[ChatKeywords],
    ) -> list[RequestOutput]: ...

    @overload
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params | None = None,
        *,
        stream: Literal[True],
        use_tqdm: Progress = True,
        raise_on_error: bool = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **chat_options: Unpack[ChatKeywords],
    ) -> Iterator[RequestOutput]: ...

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params | None = None,
        *,
        stream: bool = False,
        use_tqdm: Progress = True,
        raise_on_error: bool = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **chat_options: Unpack[ChatKeywords],
    ) -> list[RequestOutput] | Iterator[RequestOutput]:
        """Answers one conversation (a list of messages) or many (a list of such lists), as `generate` does.

        tools: function tools in OpenAI's shape, for templates that show them to the model.
        chat_template: a jinja template to use instead of the model's; chat_template_kwargs: variables for it.
        add_generation_prompt: end the prompt with the beginning of an answer (the default).
        continue_final_message: let the model continue the last message instead.
        """
        conversations: Sequence[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        options = ChatOptions(**chat_options)
        params = _one_a_prompt("sampling_params", sampling_params, SamplingParams(), len(conversations))
        prompts = [
            self._engine.inputs.chat_prompt(each, options, PromptOptions.of(tokenization_kwargs, own.max_tokens))
            for each, own in zip(conversations, params, strict=True)
        ]
        return self._run(prompts, params, stream, use_tqdm, raise_on_error)

    @overload
    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: Params | None = None,
        *,
        stream: Literal[False] = False,
        use_tqdm: Progress = True,
        raise_on_error: bool = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: Params | None = None,
        *,
        stream: Literal[True],
        use_tqdm: Progress = True,
        raise_on_error: bool = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]: ...

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: Params | None = None,
        *,
        stream: bool = False,
        use_tqdm: Progress = True,
        raise_on_error: bool = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput] | Iterator[RequestOutput]:
        """Continues one prompt or many, each a text, token ids, `{"prompt": …}` or `{"prompt_token_ids": …}`.

        sampling_params: one for all prompts, or a list with one per prompt.
        stream: False returns the answers in the order of the prompts. True returns an iterator over growing outputs, in
            order of arrival: `prompt_index` identifies the prompt, `SamplingParams.output_kind` selects the content.
            Requests begin at the iterator's first step; closing it aborts the running ones.
        use_tqdm: True for a progress bar on stderr, or a callable with the arguments of `tqdm`; unused with `stream`.
        raise_on_error: handling of a request that fails. True ends all requests of the call with its exception
            (RequestFailedError, ProcessorUnavailableError, EngineDeadError). False returns an output with `error_msg`
            and `error_code` for it, and completes the others.
        tokenization_kwargs: the fields of `PromptOptions`, such as `{"truncate_prompt_tokens": 512}`.

        Raises InvalidRequestError (a ValueError) that names the field, before any request runs, and RuntimeError after
        `shutdown`.
        """
        given = listed(prompts)
        params = _one_a_prompt("sampling_params", sampling_params, SamplingParams(), len(given))
        found = [
            read_prompt(self._engine.inputs, prompt, path, PromptOptions.of(tokenization_kwargs, own.max_tokens))
            for (path, prompt), own in zip(given, params, strict=True)
        ]
        return self._run(found, params, stream, use_tqdm, raise_on_error)

    def embed(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Returns the embeddings of one prompt or many, each text or token ids, in order.

        Raises ValueError, before any computation, for an invalid prompt or parameters, such as the task "token_embed",
        which `encode` serves.
        """
        single, inputs = _is_single(prompts), self._engine.inputs
        many: Sequence[Any] = [prompts] if single else prompts
        paths = ["prompts"] if single else [f"prompts.{index}" for index in range(len(many))]
        options = PromptOptions.of(tokenization_kwargs)
        tokens = [inputs.pooling_prompt(prompt, path, options) for prompt, path in zip(many, paths, strict=True)]
        requests = self._pooling_requests(tokens, pooling_params)
        for request in requests:
            if request.settled.pooling is not None:
                require_one_vector(request.settled.pooling)
        return [EmbeddingRequestOutput.of(output) for output in self._pool(requests, use_tqdm, "embedding")]

    def encode(
        self,
        prompts: PromptInput | Sequence[PromptInput] | Mapping[str, Any],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[Any]]:
        """Returns the pooled hidden states of prompts, in order: one vector, or one per token (`PoolingParams.task`).

        prompts: one or many, in the forms that `generate` takes; or `{"data": …}` for the IO processor that the option
            `io_processor_plugin` names, whose answer is then `outputs` of the only output.

        Raises ValueError, before any computation, for invalid arguments, and IOProcessorError when the IO processor
        fails.
        """
        if isinstance(prompts, Mapping) and DATA in prompts:
            if isinstance(pooling_params, Sequence):
                raise ValueError(f"pooling_params: give one for {DATA}, not a list")
            processing = data_processing(self._engine.inputs, self._io_processor, prompts, tokenization_kwargs)
            return [self._loop.run(self._process, processing, prompts[DATA], pooling_params)]
        inputs, options = self._engine.inputs, PromptOptions.of(tokenization_kwargs)
        found = [read_prompt(inputs, prompt, path, options, pooled=True) for path, prompt in listed(prompts)]
        return self._pool(self._pooling_requests(found, pooling_params), use_tqdm, "encoding")

    def shutdown(self) -> None:
        """Ends the worker process; further calls do nothing."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def logits_processors(self) -> list[ProcessorInfo]:
        """The declared logits processors in execution order, with their parameters, state and counters."""
        return self._engine.processors.describe()

    def reset_logits_processor(self, name: str) -> None:
        """Returns a quarantined logits processor to service; raises KeyError for a name that is not declared."""
        self._loop.run(self._engine.reset_processor, name)

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id."""
        return self._engine.worker_pid

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        stream: bool,
        use_tqdm: Progress,
        raise_on_error: bool,
    ) -> list[RequestOutput] | Iterator[RequestOutput]:
        # Settles all requests before sending the first, so that an invalid one does not leave others running.
        settled = self._loop.run(self._settle_all, prompts, params)
        requests = [
            EngineRequest(f"offline-{uuid.uuid4().hex}", prompt, each)
            for prompt, each in zip(prompts, settled, strict=True)
        ]
        if stream:
            return self._loop.iterate(self._stream_all(requests, raise_on_error))
        with _progress(use_tqdm, len(requests), "generating") as progress:
            return self._loop.run(self._generate_all, requests, progress, raise_on_error)

    async def _settle_all(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list[Settled]:
        pairs, settled = list(zip(prompts, params, strict=True)), list[Settled]()
        # Several at a time: a processor may take long to prepare a request.
        for begin in range(0, len(pairs), SETTLED_AT_ONCE):
            part = pairs[begin : begin + SETTLED_AT_ONCE]
            settled += await _all_or_none([self._engine.preparation.settle(each, prompt) for prompt, each in part])
        return settled

    async def _generate_all(
        self, requests: Sequence[EngineRequest], progress: Any, raise_on_error: bool
    ) -> list[RequestOutput]:
        async def answer(request: EngineRequest, index: int) -> RequestOutput:
            async with aclosing(self._answer(request, index, raise_on_error, stream=False)) as outputs:
                output = await anext(outputs)
            progress.update(1)
            return output

        return await _all_or_none([answer(request, index) for index, request in enumerate(requests)])

    def _pooling_requests(
        self, prompts: Sequence[Prompt], pooling_params: PoolingParams | Sequence[PoolingParams] | None
    ) -> list[EngineRequest]:
        params = _one_a_prompt("pooling_params", pooling_params, PoolingParams(), len(prompts))
        settle = self._engine.inputs.settle_pooling
        return [
            EngineRequest(f"offline-{uuid.uuid4().hex}", prompt, settle(each))
            for prompt, each in zip(prompts, params, strict=True)
        ]

    def _pool(self, requests: Sequence[EngineRequest], use_tqdm: Progress, what: str) -> list[PoolingRequestOutput]:
        with _progress(use_tqdm, len(requests), what) as progress:
            return self._loop.run(self._pool_all, requests, progress)

    async def _pool_all(self, requests: Sequence[EngineRequest], progress: Any) -> list[PoolingRequestOutput]:
        return await _all_or_none([self._pool_one(request, progress) for request in requests])

    async def _pool_one(self, request: EngineRequest, progress: Any = None) -> PoolingRequestOutput:
        async with self._turns:
            (pooling,) = await self._engine.pool([request], bounded=False)
            output = await pooling.result()
        if progress is not None:
            progress.update(1)
        return output

    async def _process(
        self, processing: IOProcessing, data: Any, params: PoolingParams | None
    ) -> PoolingRequestOutput[Any]:
        request_id = f"offline-{uuid.uuid4().hex}"
        requests = await processing.requests(data, params, request_id)
        output = await processing.answer([partial(self._pool_one, each) for each in requests], request_id)
        return PoolingRequestOutput(request_id, output, [])

    async def _stream_all(
        self, requests: Sequence[EngineRequest], raise_on_error: bool
    ) -> AsyncGenerator[RequestOutput, None]:
        answers = [self._answer(request, index, raise_on_error, stream=True) for index, request in enumerate(requests)]
        async with aclosing(merged(answers)) as outputs:
            async for _, output in outputs:
                yield output

    async def _answer(
        self, request: EngineRequest, index: int, raise_on_error: bool, *, stream: bool
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of one request; only the complete answer unless `stream`."""
        kind = request.settled.params.output_kind if stream else RequestOutputKind.FINAL_ONLY
        try:
            # Prompts beyond the engine's limit of waiting requests wait here for a turn.
            async with self._turns:
                wakes = kind is not RequestOutputKind.FINAL_ONLY
                (generation,) = await self._engine.generate([request], stream=wakes, bounded=False)
                async with aclosing(generation.outputs(kind)) as outputs:
                    async for output in outputs:
                        output.prompt_index = index
                        yield output
        except (RequestFailedError, EngineDeadError) as error:
            if raise_on_error:
                raise
            yield _failed(request, index, error)


async def _create(make: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
    return make(*arguments, **keywords)


def _shutdown(loop: LoopThread, engine: Engine) -> None:
    if loop.is_current:  # the garbage collector may run in any thread, and the loop's thread must not wait for itself
        # Threads of a daemon thread are daemons by default, and the interpreter's exit does not wait for daemons.
        threading.Thread(target=_shutdown, args=(loop, engine), daemon=False).start()
        return
    loop.run(engine.shutdown)
    loop.close()


def _failed(request: EngineRequest, index: int, error: RequestFailedError | EngineDeadError) -> RequestOutput:
    completions = [CompletionOutput(each, "", []) for each in range(request.settled.params.n)]
    return RequestOutput(
        request.request_id,
        request.prompt.text,
        request.prompt.token_ids,
        completions,
        finished=True,
        prompt_index=index,
        error_code=503 if isinstance(error, (EngineDeadError, ProcessorUnavailableError, WorkerLostError)) else 500,
        error_msg=str(error),
    )


def _progress(use_tqdm: Progress, total: int, what: str) -> Any:
    make = use_tqdm if callable(use_tqdm) else tqdm
    return make(total=total, desc=what, unit="prompt", disable=use_tqdm is False)


async def _all_or_none(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Runs all coroutines concurrently and returns their results; a failure cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_single(prompts: str | Sequence[Any]) -> bool:
    """True if this is one text or one list of token ids."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _one_a_prompt(
    name: str, params: AnyParams | Sequence[AnyParams] | None, default: AnyParams, count: int
) -> Sequence[AnyParams]:
    if params is None:
        return [default] * count
    if not isinstance(params, Sequence):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{name}: {len(params)} given for {count} prompts; give one, or one a prompt")
    return params
