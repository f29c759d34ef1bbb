"""Preparation of requests before they reach a worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.speculation import NGRAM
from fastdeploy_lp.engine.errors import InvalidRequestError, ProcessorUnavailableError
from fastdeploy_lp.engine.helpers.args_validator import args_validator, served_tokenizer
from fastdeploy_lp.engine.helpers.grammar_checker import GrammarChecker, GrammarProcesses
from fastdeploy_lp.engine.helpers.host_threads import HostThreads, Run, run_here
from fastdeploy_lp.engine.helpers.preparer import Preparer
from fastdeploy_lp.engine.helpers.template_sandbox import TemplateSandbox
from fastdeploy_lp.engine.helpers.trials import Trials, UnsendableError
from fastdeploy_lp.engine.helpers.turns import MAX_WAITING
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.prepare.input_processor import InputProcessor, Prompt, Settled
from fastdeploy_lp.engine.prepare.late_values import LateValues
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsError, Selection
from fastdeploy_lp.logits_processor.arguments.imposed import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.logits_processor.chain.author_threads import NotInTimeError
from fastdeploy_lp.request.sampling_params import SamplingParams


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
