"""Offline inference: the same worker and the same engine client as the server, behind plain calls."""

from __future__ import annotations

import asyncio
import threading
import uuid
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.input_processor import Prompt, Settled
from fastdeploy_lp.engine.pooling import PoolingRequest
from fastdeploy_lp.engine.processor_states import ProcessorInfo
from fastdeploy_lp.entrypoints.declare import declare
from fastdeploy_lp.outputs import EmbeddingRequestOutput, RequestOutput
from fastdeploy_lp.pooling_params import PoolingParams
from fastdeploy_lp.sampling_params import SamplingParams

Result = TypeVar("Result")
Params = TypeVar("Params", SamplingParams, PoolingParams)
Conversation = Sequence[Mapping[str, Any]]


class LLM:
    """A model in a worker process of its own, for batches of prompts.

    model: directory, GGUF file or known name.
    logits_processors: builtin names, `module.path:ClassName`, or classes themselves.
    Every other keyword is a field of `EngineArgs`.

    Raises ValueError for options that cannot be used and EngineStartError when the worker does not come up. Use it as a
    context manager or call `shutdown`; at the interpreter's exit it ends by itself.
    """

    def __init__(self, model: str, *, logits_processors: Sequence[str | type] = (), **engine_args: Any) -> None:
        setup = declare(model, logits_processors, engine_args)
        self._loop = _LoopThread()
        self._engine = self._loop.run(_create(EngineClient, setup.fd_config, setup.declared))
        config = setup.fd_config.scheduler_config
        self._turns = asyncio.Semaphore(config.max_num_seqs + config.max_waiting_requests)
        self._finalizer = weakref.finalize(self, _shutdown, self._loop, self._engine)
        try:
            self._loop.run(self._engine.start())
        except BaseException:
            self.shutdown()
            raise

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or many (a list of such lists), in order."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self._engine.inputs.chat_prompt(conversation) for conversation in conversations]  # type: ignore[arg-type]
        return self._run(prompts, sampling_params, use_tqdm=use_tqdm)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue one prompt or many, given as text or as token ids, in order."""
        many: Sequence[Any] = [prompts] if _is_single(prompts) else prompts
        return self._run([self._engine.inputs.prompt(p) for p in many], sampling_params, use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """The embeddings of one prompt or many, given as text or as token ids, in order.

        Raises ValueError, before anything is computed, for a prompt or parameters that cannot be used.
        """
        single, inputs = _is_single(prompts), self._engine.inputs
        many: Sequence[Any] = [prompts] if single else prompts
        paths = ["prompts"] if single else [f"prompts.{index}" for index in range(len(many))]
        tokens = [inputs.pooling_prompt(prompt, path) for prompt, path in zip(many, paths, strict=True)]
        params = _one_a_prompt("pooling_params", pooling_params, PoolingParams(), len(many))
        requests = [
            PoolingRequest(f"offline-{uuid.uuid4().hex}", prompt, inputs.settle_pooling(each))
            for prompt, each in zip(tokens, params, strict=True)
        ]
        with tqdm(total=len(requests), desc="embedding", unit="prompt", disable=not use_tqdm) as progress:
            return self._loop.run(_all_or_none([self._embed_one(request, progress) for request in requests]))

    def shutdown(self) -> None:
        """End the worker process; calling it again does nothing."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def logits_processors(self) -> list[ProcessorInfo]:
        """The declared logits processors in the order of execution, with their parameters, state and counters."""
        return self._engine.processors.describe()

    def reset_logits_processor(self, name: str) -> None:
        """Put a quarantined logits processor back into service; raises KeyError for a name that is not declared."""
        self._loop.run(self._engine.reset_processor(name))

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id."""
        return self._engine.worker_pid

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = _one_a_prompt("sampling_params", sampling_params, SamplingParams(), len(prompts))
        with tqdm(total=len(prompts), desc="generating", unit="prompt", disable=not use_tqdm) as progress:
            return self._loop.run(self._generate_all(prompts, params, progress))

    async def _generate_all(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], progress: tqdm[Any]
    ) -> list[RequestOutput]:
        # All are settled before the first one is sent, so that a bad one does not leave the others running.
        settled = [self._engine.inputs.settle(each, prompt) for prompt, each in zip(prompts, params, strict=True)]
        pairs = zip(prompts, settled, strict=True)
        return await _all_or_none([self._generate_one(prompt, each, progress) for prompt, each in pairs])

    async def _generate_one(self, prompt: Prompt, settled: Settled, progress: tqdm[Any]) -> RequestOutput:
        request = EngineRequest(f"offline-{uuid.uuid4().hex}", prompt, settled)
        # There may be more prompts than may wait: those that have no turn yet wait here.
        async with self._turns:
            (generation,) = await self._engine.generate([request], bounded=False)
            output = await generation.result()
        progress.update()
        return output

    async def _embed_one(self, request: PoolingRequest, progress: tqdm[Any]) -> EmbeddingRequestOutput:
        async with self._turns:
            (pooling,) = await self._engine.pool([request], bounded=False)
            output = await pooling.result()
        progress.update()
        return EmbeddingRequestOutput.of(output)


class _LoopThread:
    """An event loop in a daemon thread, for callers that have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fastdeploy_lp-engine", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and wait for it; an interrupt of the caller cancels it.

        Raises RuntimeError once it is closed.
        """
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this LLM has been shut down")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and join its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _create(kind: type[Result], *arguments: Any) -> Result:
    return kind(*arguments)


def _shutdown(loop: _LoopThread, engine: EngineClient) -> None:
    loop.run(engine.shutdown())
    loop.close()


async def _all_or_none(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All of it at the same time; what still runs when one fails is cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _is_single(prompts: str | Sequence[Any]) -> bool:
    """Whether this is one text or one list of token ids."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _one_a_prompt(name: str, params: Params | Sequence[Params] | None, default: Params, count: int) -> Sequence[Params]:
    if params is None:
        return [default] * count
    if not isinstance(params, Sequence):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{name}: {len(params)} given for {count} prompts; give one, or one a prompt")
    return params
