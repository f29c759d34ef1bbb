"""Preparation of requests before they reach a worker: checks, late values, sizes of answers, threads for large ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.speculation import NGRAM
from fastdeploy_lp.engine.errors import (
    InvalidRequestError,
    ProcessorUnavailableError,
    QueueFullError,
    RequestFailedError,
    discreet,
)
from fastdeploy_lp.engine.helpers.args_validator import args_validator, served_tokenizer
from fastdeploy_lp.engine.helpers.grammar_checker import GrammarChecker, GrammarProcesses
from fastdeploy_lp.engine.helpers.preparer import PreparationFailedError, Preparer
from fastdeploy_lp.engine.helpers.template_sandbox import TemplateSandbox
from fastdeploy_lp.engine.helpers.trials import Trials, UnsendableError
from fastdeploy_lp.engine.helpers.turns import MAX_WAITING, Turns
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, InputProcessor, Prompt, Settled
from fastdeploy_lp.logits_processor import DeclaredProcessor, PrepareRequest, RequestArgsError, Selection
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.logits_processor.chain.author_threads import NotInTimeError, share_interpreter
from fastdeploy_lp.logits_processor.late_values import HOLD, SKIP, LateValue
from fastdeploy_lp.request.limits import MAX_POOLED_NUMBERS, MAX_PROMPT_LOGPROBS
from fastdeploy_lp.request.pooling_params import TOKEN_EMBED
from fastdeploy_lp.request.sampling_params import SamplingParams

THREADS = 2
# Bytes of a token id, rank and logprob together, and of one number.
LOGPROB_BYTES = 12
NUMBER_BYTES = 4

_NO_VALUE = object()
Result = TypeVar("Result")


class Run(Protocol):
    """Runs a piece of work inline (`run_here`) or in a thread (`HostThreads.run`)."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Returns the result of the work; raises what it raises."""


async def run_here(work: Callable[[], Result]) -> Result:
    """Runs work that is too small for a thread, and returns its result."""
    return work()


class HostThreads:
    """Runs work in threads, so that the event loop stays free.

    Clients take turns, and work whose caller is cancelled before it begins is dropped. Running work keeps its thread
    until it returns: callers bound it beforehand. most: limit of waiting pieces of work.
    """

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._turns = Turns(THREADS, "threads that prepare large requests", most)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="host-work")

    async def run(self, work: Callable[[], Result], client: str = "") -> Result:
        """Returns the result of the work; raises what it raises, and QueueFullError when too many callers wait."""
        share_interpreter()
        await self._turns.take(client)
        loop = asyncio.get_running_loop()

        def ended(_: Future[Result]) -> None:
            # The loop may be closed by now; then no caller waits for a turn.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._turns.give_back)

        running = self._threads.submit(copy_context().run, work)
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    def of(self, client: str) -> Run:
        """Returns `run` bound to a client."""
        return _RunForClient(self, client)

    def close(self) -> None:
        """Releases the threads without waiting for running work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _RunForClient:
    """`HostThreads.run` bound to a client."""

    threads: HostThreads
    client: str

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Returns the result of the work; raises what it raises."""
        return await self.threads.run(work, self.client)


class LateValues:
    """Adds the values that a request's processors find for it to its selection."""

    def __init__(self, declared: Sequence[DeclaredProcessor], preparer: Preparer) -> None:
        self._preparing = [(each, each.late_value) for each in declared if each.late_value is not None]
        self._preparer = preparer

    @property
    def idle(self) -> bool:
        """True if no processor has a `prepare`."""
        return not self._preparing

    def start(self) -> None:
        """Starts the process of the calls if any processor has a `prepare`."""
        if self._preparing:
            self._preparer.start()

    async def add(self, selection: Selection, prompt: Prompt) -> Selection:
        """Returns the selection of a prompt with the values, and without processors that are left out for lack of one.

        Raises ProcessorUnavailableError for a value that comes too late, RequestFailedError for one that cannot be
        found, and QueueFullError while too many requests wait for values.
        """
        wanted = [(each, late) for each, late in self._preparing if each.is_used_by(selection.in_shadow())]
        if not wanted:
            return selection
        tasks = [asyncio.ensure_future(self._value(each, late, selection, prompt)) for each, late in wanted]
        try:
            await asyncio.gather(*tasks)
        except RequestFailedError as error:
            raise discreet(error, selection.secret) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found = {each.name: task.result() for (each, _), task in zip(wanted, tasks, strict=True)}
        for name, value in found.items():
            if value is _NO_VALUE:
                selection = selection.without(name)
        prepared = {name: value for name, value in found.items() if value is not _NO_VALUE}
        return msgspec.structs.replace(selection, prepared=prepared)

    async def close(self) -> None:
        """Ends the process of the calls."""
        await self._preparer.close()

    async def _value(self, processor: DeclaredProcessor, late: LateValue, selection: Selection, prompt: Prompt) -> Any:
        """Returns a processor's value, `_NO_VALUE` if the request runs without the processor."""
        args = dict(selection.in_shadow().args_for(processor.name))
        name = f"logits processor {processor.name}"
        optional = not (processor.mandatory or processor.name in selection.imposed)
        in_shadow = processor.name in selection.shadow and processor.name not in selection.imposed
        skips = in_shadow or (late.late == SKIP and optional)
        error: RequestFailedError
        try:
            # The start of the process is no part of the call.
            await self._preparer.ready()
            call = self._preparer.value(processor.name, PrepareRequest(args, prompt.text, prompt.token_ids))
            return await asyncio.wait_for(call, None if late.late == HOLD else late.timeout)
        except asyncio.TimeoutError:
            error = ProcessorUnavailableError(f"{name}: its prepare took longer than {late.timeout:g} s")
        except PreparationFailedError as failed:
            error = RequestFailedError(f"{name}: its prepare failed: {failed}")
        except QueueFullError:
            if not skips:
                raise
            return _NO_VALUE
        if skips:
            return _NO_VALUE
        raise error


class RequestPreparation:
    """Tokenizer, parsers, checks and grammars of one model, shared by all of its workers."""

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor]) -> None:
        config = fd_config.model_config
        # Request serial numbers, unique across workers.
        self.serials = itertools.count()
        self.tokenizer = served_tokenizer(fd_config)
        self.message_parsers = MessageParsers(fd_config.chat_config, self.tokenizer.chat_template_source)
        chain, guided = fd_config.structured_outputs_config, fd_config.guided_decoding_config
        self._args_validator = args_validator(fd_config, declared, self.tokenizer)
        speculation = fd_config.scheduler_config.speculation
        self.inputs = InputProcessor(
            config,
            self.tokenizer,
            self._args_validator,
            whitespace=guided.json_whitespace,
            max_trace_tokens=chain.max_trace_tokens,
            parts=self.message_parsers.parts,
            looks_up=speculation is not None and NGRAM in speculation.sources,
        )
        # No more requests wait here than may wait for slots.
        waiting = fd_config.scheduler_config.max_waiting_requests
        most = min(waiting, MAX_WAITING)
        self._grammars = GrammarChecker(GrammarProcesses(config, guided, most), guided)
        self._trials = Trials(fd_config, declared, chain.code_timeout, most)
        self._late_values = LateValues(declared, Preparer(fd_config, declared, waiting))
        self.request_templates = TemplateSandbox(self.tokenizer.special_tokens, waiting)
        self.host = HostThreads(waiting)

    def start(self) -> None:
        """Starts the processes that requests need; repeated calls do nothing."""
        self._trials.start()
        self._late_values.start()

    async def settle(self, params: SamplingParams, prompt: Prompt, client: str = "") -> Settled:
        """Returns the single result of `settle_each`; raises as it does."""
        (settled,) = await self.settle_each(params, [prompt], client)
        return settled

    async def settle_each(
        self,
        params: SamplingParams,
        prompts: Sequence[Prompt],
        client: str = "",
        inside: Run = run_here,
        imposed: Imposed = NOTHING_IMPOSED,
    ) -> list[Settled]:
        """Settles the prompts of one request as `InputProcessor.settle_each` does, and checks the grammar.

        `imposed` is the operator's part of it. `inside` runs this server's checks; separate processes run the checks of
        processors' authors. Clients take turns at compiling grammars. Raises InvalidRequestError,
        ProcessorUnavailableError for a processor whose check does not return in time, and QueueFullError while too many
        requests wait for their checks.
        """
        _require_few_tokens(params, imposed.max_tokens)
        await inside(partial(self.inputs.require_valid, params, prompts))
        selection = await self._selection(params, client, inside, imposed)
        settled = await inside(partial(self.inputs.settle_chosen, params, prompts, selection, imposed.max_tokens))
        # All prompts share one grammar.
        if settled and settled[0].grammar is not None:
            await self._grammars.check(settled[0].grammar, client)
        return settled if self._late_values.idle else await self._with_late_values(settled, prompts)

    async def _with_late_values(self, settled: Sequence[Settled], prompts: Sequence[Prompt]) -> list[Settled]:
        """Returns the requests with the values that their processors find for them, which may take time."""
        adding = [
            asyncio.ensure_future(self._late_values.add(each.selection, prompt))
            for each, prompt in zip(settled, prompts, strict=True)
        ]
        try:
            selections = await asyncio.gather(*adding)
        finally:
            for each in adding:
                each.cancel()
        return [replace(each, selection=found) for each, found in zip(settled, selections, strict=True)]

    async def _selection(self, params: SamplingParams, client: str, inside: Run, imposed: Imposed) -> Selection:
        try:
            authors = self._args_validator.for_client(params, imposed).authors_of(params)
            if authors:
                return await self._trials.selection(params, authors, client, imposed)
        except UnsendableError:
            pass
        except RequestArgsError as error:
            raise InvalidRequestError(error.path, error.reason) from None
        except NotInTimeError as error:
            raise ProcessorUnavailableError(str(error)) from None
        return await inside(partial(self.inputs.chosen, params, imposed))

    async def close(self) -> None:
        """Releases threads and processes; repeated calls do nothing."""
        await self._grammars.close()
        self.host.close()
        await self._trials.close()
        await self._late_values.close()


def _require_few_tokens(params: SamplingParams, most: int | None) -> None:
    """Raises InvalidRequestError for more tokens than the operator allows the client."""
    if most is not None and params.max_tokens is not None and params.max_tokens > most:
        reason = f"{params.max_tokens} is too many: this client's requests may have {most} in each completion"
        raise InvalidRequestError("max_tokens", reason)


def prompt_logprobs_bytes(requests: Sequence[EngineRequest], field: str) -> int:
    """Returns the bytes of the prompts' logprobs; raises InvalidRequestError for `field` if there are too many."""
    count = sum(
        len(each.prompt.token_ids) * (each.settled.params.prompt_logprobs + 1)
        for each in requests
        if each.settled.params.prompt_logprobs is not None
    )
    if count > MAX_PROMPT_LOGPROBS:
        reason = f"the prompts' tokens times one more than the logprobs of each are {count}"
        raise InvalidRequestError(field, f"{reason}; at most {MAX_PROMPT_LOGPROBS} are allowed")
    return count * LOGPROB_BYTES


def token_vectors_bytes(requests: Sequence[EngineRequest], hidden_size: int) -> int:
    """Returns the bytes of the vectors of all tokens; raises InvalidRequestError if there are too many."""
    pooled = [(each.prompt, each.settled.pooling) for each in requests]
    tokens = sum(len(each.token_ids) for each, params in pooled if params is not None and params.task == TOKEN_EMBED)
    if tokens * hidden_size > MAX_POOLED_NUMBERS:
        reason = f"vectors of {tokens} tokens with {hidden_size} numbers each are too many to answer with"
        raise InvalidRequestError("task", f"{reason}; at most {MAX_POOLED_NUMBERS} numbers are allowed")
    return tokens * hidden_size * NUMBER_BYTES
