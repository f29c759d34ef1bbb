"""The API process's view of the engine: requests in, deltas out, and the worker behind it supervised."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cloudpickle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.completion import Completion
from fastdeploy_lp.engine.errors import (
    EngineDeadError,
    EngineStartingError,
    ProcessorUnavailableError,
    QueueFullError,
    RequestFailedError,
)
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.grammar_checker import GrammarChecker
from fastdeploy_lp.engine.input_processor import InputProcessor, Prompt, Settled
from fastdeploy_lp.engine.logprobs import spelled_out
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.metrics import EngineMetrics
from fastdeploy_lp.engine.pooling import Pooling, PoolingRequest
from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.engine.worker_handle import WorkerHandle
from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsValidator
from fastdeploy_lp.messages import (
    AbortRequests,
    AddPooling,
    AddRequest,
    ResetProcessor,
    SequenceStep,
    StepOutputs,
    WorkerFailed,
)
from fastdeploy_lp.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineRequest:
    """A prompt to be continued, with parameters that `EngineClient.settle` has settled."""

    request_id: str
    prompt: Prompt
    settled: Settled


@dataclass(frozen=True)
class EngineLoad:
    """How many sequences have a slot, and how many wait for one."""

    running: int = 0
    waiting: int = 0


class EngineClient:
    """Runs requests on one worker process, its own unless another is given; lives on one event loop."""

    def __init__(
        self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor], worker: WorkerHandle | None = None
    ) -> None:
        config = fd_config.model_config
        self.fd_config = fd_config
        self.tokenizer = Tokenizer(Path(config.directory), chat_template=fd_config.chat_config.chat_template)
        self.message_parsers = MessageParsers(fd_config.chat_config, self.tokenizer.chat_template_source)
        chain, guided = fd_config.structured_outputs_config, fd_config.guided_decoding_config
        encode = self.tokenizer.encode_phrase
        args_validator = RequestArgsValidator(declared, config.vocab_size, encode, shadow=chain.shadow)
        self.inputs = InputProcessor(
            config,
            self.tokenizer,
            args_validator,
            any_whitespace=guided.any_whitespace,
            max_trace_tokens=chain.max_trace_tokens,
        )
        compiler = GrammarCompiler(Path(config.directory), config.vocab_size, config.eos_token_ids, guided.cache_size)
        self._grammars = GrammarChecker(compiler, guided)
        self.processors = ProcessorStates(declared)
        self.metrics = EngineMetrics(self.processors, fd_config.scheduler_config.max_num_seqs)
        self.load = EngineLoad()
        self._declared = list(declared)
        self._worker = worker or WorkerHandle(fd_config)
        self._routes: dict[str, tuple[Generation, Completion]] = {}
        self._poolings: dict[str, Pooling] = {}
        self._reader: asyncio.Task[None] | None = None
        self._serials = itertools.count()
        self._dead: str | None = None

    async def start(self) -> None:
        """Start the worker and wait until it is ready; raises EngineStartError."""
        # Only classes given as objects travel; importable ones are found again by their SPEC.
        objects = {p.spec: cloudpickle.dumps(p.found) for p in self._declared if p.given_as_object}
        ready = await self._worker.start(objects)
        logger.info("worker %s ready, model loaded in %.1f s", self._worker.pid, ready.load_seconds)
        self.processors.set_argmax_invariant(ready.argmax_invariant)
        self._reader = asyncio.create_task(self._read())

    def require_started(self) -> None:
        """Raise EngineStartingError before the worker is ready; it may be gone by now, too."""
        if self._dead is None and self._reader is None:
            raise EngineStartingError("the model is still being loaded; try again later")

    def require_alive(self) -> None:
        """Raise EngineStartingError before the worker is ready, and EngineDeadError after its end."""
        self.require_started()
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id."""
        return self._worker.pid

    async def settle(self, params: SamplingParams, prompt: Prompt) -> Settled:
        """What `inputs.settle` gives, with a grammar that compiles; raises InvalidRequestError."""
        settled = self.inputs.settle(params, prompt)
        if settled.grammar is not None:
            await self._grammars.check(settled.grammar)
        return settled

    async def generate(
        self, requests: Sequence[EngineRequest], *, stream: bool = False, bounded: bool = True
    ) -> list[Generation]:
        """Send requests to the worker, all of them or none.

        Raises EngineDeadError or EngineStartingError when there is no worker, ProcessorUnavailableError when a request
        asks for a logits processor that is in quarantine and, if `bounded`, QueueFullError when too many sequences wait
        already.
        """
        self.require_alive()
        for request in requests:
            self.processors.require_in_service(request.settled.selection)
        if bounded:
            self._require_room(sum(request.settled.params.n for request in requests))
        # All of them before the first is sent: what comes meanwhile must find the room taken.
        generations = [self._register(request, stream=stream) for request in requests]
        try:
            for request, generation in zip(requests, generations, strict=True):
                self._send(request.settled, generation)
        except BaseException:
            for generation in generations:
                self._close(generation)
            raise
        return generations

    async def pool(self, requests: Sequence[PoolingRequest], *, bounded: bool = True) -> list[Pooling]:
        """Send prompts that are pooled to the worker, all of them or none; raises as `generate` does."""
        self.require_alive()
        if bounded:
            self._require_room(len(requests))
        poolings = [Pooling(request, on_close=self._close_pooling) for request in requests]
        for pooling in poolings:
            pooling.serial = next(self._serials)
        self._poolings |= {_pooling_id(pooling): pooling for pooling in poolings}
        for pooling in poolings:
            self.metrics.request_came(len(pooling.prompt.token_ids), 1, None)
            kind = pooling.params.pooling or self.fd_config.model_config.pooling_type
            self._worker.send(AddPooling(_pooling_id(pooling), pooling.prompt.token_ids, kind))
        return poolings

    async def reset_processor(self, name: str) -> None:
        """Put a quarantined logits processor back into service; raises KeyError for a name that is not declared."""
        self.processors.reset(name)
        self._worker.send(ResetProcessor(name))

    async def shutdown(self) -> None:
        """End the worker; requests still in flight end with EngineDeadError."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._die("the server is shutting down")
        self._grammars.close()
        await self._worker.stop()

    async def _read(self) -> None:
        while (message := await self._worker.receive()) is not None:
            if isinstance(message, StepOutputs):
                self._take(message)
            elif isinstance(message, WorkerFailed):
                self._die(message.message)
            # Messages may lie ready one behind the other; callers have to get their turn between them.
            await asyncio.sleep(0)
        self._die(f"the worker process ended with status {self._worker.exit_status}")
        logger.error("engine down: %s", self._dead)

    def _take(self, outputs: StepOutputs) -> None:
        self._set_load(EngineLoad(outputs.num_running, outputs.num_waiting))
        self.metrics.cache.stats = outputs.cache
        if outputs.processors is not None:
            self.processors.update(outputs.processors)
        self.metrics.generation_tokens.inc(sum(len(step.token_ids) for step in outputs.steps))
        for step in outputs.steps:
            route = self._routes.get(step.request_id)
            if route is not None:
                self._take_step(step, *route)
            elif step.request_id in self._poolings:
                self._take_pooled(step, self._poolings.pop(step.request_id))

    def _take_step(self, step: SequenceStep, generation: Generation, completion: Completion) -> None:
        if step.error is not None:
            self._drop(generation)
            self.metrics.failed.inc()
            kind = ProcessorUnavailableError if step.unavailable else RequestFailedError
            generation.fail(kind(step.error))
            return
        times = generation.times[completion.index]
        if times.first_token is None:
            times.scheduled = step.scheduled_at
            completion.num_cached_tokens = step.num_cached_tokens or 0
        self.metrics.token_came(times, time.monotonic())
        if step.prompt_logprobs is not None:
            spelled = [spelled_out(position, self.tokenizer) for position in step.prompt_logprobs]
            generation.prompt_logprobs = [None, *spelled]
        completion.feed(
            step.token_ids, step.finish_reason, step.stop_reason, step.logprobs, trace=step.trace, shadows=step.shadows
        )
        if completion.finish_reason is not None:
            self.metrics.sequence_ended(times, completion.num_tokens, completion.finish_reason)
            del self._routes[step.request_id]
            if step.finish_reason is None:  # a stop string, which the worker does not know of
                self._abort([step.request_id])
        generation.notify()

    def _take_pooled(self, step: SequenceStep, pooling: Pooling) -> None:
        if step.pooled is None:
            self.metrics.failed.inc()
            pooling.fail(RequestFailedError(step.error or "the worker gave no vector"))
            return
        (times,) = pooling.times
        times.scheduled = step.scheduled_at
        pooling.finish(step.pooled, step.num_cached_tokens or 0)
        self.metrics.pooling_ended(step.finish_reason or "stop", time.monotonic() - times.arrival)

    def _require_room(self, count: int) -> None:
        """A request larger than all the room there is gets in when it is alone, or it never would."""
        config = self.fd_config.scheduler_config
        room = config.max_num_seqs + config.max_waiting_requests
        in_flight = len(self._routes) + len(self._poolings)
        if in_flight and in_flight + count > room:
            raise QueueFullError(
                f"the server is busy: {in_flight} sequences run or wait, {count} more are asked for, and it "
                f"takes {room} (max_num_seqs = {config.max_num_seqs}, "
                f"max_waiting_requests = {config.max_waiting_requests}); try again later"
            )

    def _register(self, request: EngineRequest, *, stream: bool) -> Generation:
        params = request.settled.params
        completions = [
            Completion(
                index,
                self.tokenizer,
                params.stop_strings,
                min_tokens=params.min_tokens,
                logprobs=params.logprobs is not None,
                trace=params.trace is not None,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
            )
            for index in range(params.n)
        ]
        generation = Generation(
            request.request_id,
            request.prompt,
            completions,
            stream=stream,
            on_close=self._close,
            processors=self.processors.used_by(request.settled.selection),
        )
        generation.serial = next(self._serials)
        self._routes |= {_sequence_id(generation, each): (generation, each) for each in completions}
        self.metrics.request_came(len(request.prompt.token_ids), params.n, params.max_tokens)
        return generation

    def _send(self, settled: Settled, generation: Generation) -> None:
        for completion in generation.completions:
            params = self.inputs.sequence_params(settled, completion.index)
            name = _sequence_id(generation, completion)
            grammar = None if settled.grammar is None else settled.grammar.text
            self._worker.send(AddRequest(name, generation.prompt.token_ids, params, settled.selection, grammar))

    def _close(self, generation: Generation) -> None:
        """The caller reads no more: what still runs is aborted."""
        sequence_ids = self._drop(generation)
        self.metrics.aborted.inc(len(sequence_ids))
        self._abort(sequence_ids)

    def _close_pooling(self, pooling: Pooling) -> None:
        if self._poolings.pop(_pooling_id(pooling), None) is not None:
            self.metrics.aborted.inc()
            self._abort([_pooling_id(pooling)])

    def _drop(self, generation: Generation) -> list[str]:
        ids = [_sequence_id(generation, completion) for completion in generation.completions]
        return [sequence_id for sequence_id in ids if self._routes.pop(sequence_id, None) is not None]

    def _abort(self, sequence_ids: list[str]) -> None:
        if sequence_ids and self._dead is None:
            self._worker.send(AbortRequests(sequence_ids))

    def _die(self, reason: str) -> None:
        if self._dead is not None:
            return
        self._dead = reason
        self._set_load(EngineLoad())
        generations = {id(generation): generation for generation, _ in self._routes.values()}
        self._routes.clear()
        for generation in generations.values():
            generation.fail(EngineDeadError(reason))
        for pooling in self._poolings.values():
            pooling.fail(EngineDeadError(reason))
        self._poolings.clear()

    def _set_load(self, load: EngineLoad) -> None:
        self.load = load
        self.metrics.running.set(load.running)
        self.metrics.waiting.set(load.waiting)


def _sequence_id(generation: Generation, completion: Completion) -> str:
    # Clients choose ids and may use one again while the worker still tells of the last request that had it.
    return f"{generation.request_id}-{completion.index}-{generation.serial}"


def _pooling_id(pooling: Pooling) -> str:
    return f"{pooling.request_id}-{pooling.serial}"
