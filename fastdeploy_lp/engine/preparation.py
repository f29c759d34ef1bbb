"""What is done with a request before any worker hears of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.author_checks import AuthorChecks
from fastdeploy_lp.engine.grammar_checker import GrammarChecker
from fastdeploy_lp.engine.host_threads import HostThreads, Run, run_here
from fastdeploy_lp.engine.input_processor import InputProcessor, Prompt, Settled
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.no_tokenizer import NoTokenizer
from fastdeploy_lp.engine.template_sandbox import TemplateSandbox
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.engine.trials import Trials
from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler
from fastdeploy_lp.logits_processor import DeclaredProcessor, RequestArgsValidator
from fastdeploy_lp.sampling_params import SamplingParams


class RequestPreparation:
    """Tokenizer, parsers, checks and grammars of one model; however many workers run it, they are needed once."""

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor]) -> None:
        config = fd_config.model_config
        # Numbers of requests, by which they are told apart whoever runs them.
        self.serials = itertools.count()
        self.tokenizer = _tokenizer(fd_config)
        self.message_parsers = MessageParsers(fd_config.chat_config, self.tokenizer.chat_template_source)
        chain, guided = fd_config.structured_outputs_config, fd_config.guided_decoding_config
        encode = partial(_phrase, self.tokenizer, config.vocab_size) if self.tokenizer.handles_text else None
        args_validator = RequestArgsValidator(
            declared, config.vocab_size, encode, shadow=chain.shadow, tokenizer=fd_config.tokenizer
        )
        self.inputs = InputProcessor(
            config,
            self.tokenizer,
            args_validator,
            any_whitespace=guided.any_whitespace,
            max_trace_tokens=chain.max_trace_tokens,
        )
        compiler = GrammarCompiler(Path(config.directory), config.vocab_size, config.eos_token_ids, guided.cache_size)
        self._grammars = GrammarChecker(compiler, guided)
        tried = [each for each in declared if each.dialect.tries_arguments]
        self._trials = Trials(fd_config, tried, chain.code_timeout)
        self._author_checks = AuthorChecks(chain.code_timeout, self._trials)
        # No more can wait here than the operator lets wait for slots.
        waiting = fd_config.scheduler_config.max_waiting_requests
        self.request_templates = TemplateSandbox(self.tokenizer.special_tokens, waiting)
        self.host = HostThreads(waiting)

    async def settle(self, params: SamplingParams, prompt: Prompt) -> Settled:
        """What `settle_each` returns for one prompt; raises as it does."""
        (settled,) = await self.settle_each(params, [prompt])
        return settled

    async def settle_each(
        self, params: SamplingParams, prompts: Sequence[Prompt], inside: Run = run_here
    ) -> list[Settled]:
        """What `inputs.settling` returns, with a grammar that compiles; `inside` runs its steps.

        Processors' own checks run in threads and processes. Raises InvalidRequestError, and ProcessorUnavailableError
        for a processor whose check does not return in time.
        """
        settled = await self._author_checks.run(self.inputs.settling(params, prompts), inside)
        # All prompts have the same one.
        if settled and settled[0].grammar is not None:
            await self._grammars.check(settled[0].grammar)
        return settled

    async def close(self) -> None:
        """Give back threads and processes; calling this again does nothing."""
        self._grammars.close()
        self.host.close()
        await self._trials.close()


def _phrase(tokenizer: Tokenizer, vocab_size: int, text: str) -> list[int]:
    """Token ids of a piece of text; raises ValueError for those that the model does not know."""
    ids = tokenizer.encode_phrase(text)
    if max(ids, default=0) >= vocab_size:
        raise ValueError(f"{text!r} has the token {max(ids)}; this model's are 0 to {vocab_size - 1}")
    return ids


def _tokenizer(fd_config: FDConfig) -> Tokenizer:
    if fd_config.model_config.skip_tokenizer_init:
        return NoTokenizer()
    return Tokenizer(Path(fd_config.model_config.directory), chat_template=fd_config.chat_config.chat_template)
