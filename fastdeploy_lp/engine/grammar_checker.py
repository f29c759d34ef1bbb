"""Whether grammars compile, found out before a request is sent and away from the event loop."""

from __future__ import annotations

import asyncio

from fastdeploy_lp.config import GuidedDecodingConfig
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler, GrammarError
from fastdeploy_lp.guided_decoding.grammar import Grammar
from fastdeploy_lp.guided_decoding.threads import GrammarThreads

THREADS = 2


class GrammarChecker:
    """Refuses what the worker could not compile, with the library's reason.

    A grammar that takes too long is given up; the library's own limits end the thread's work on it soon after.
    """

    def __init__(self, compiler: GrammarCompiler, config: GuidedDecodingConfig) -> None:
        self._compiler = compiler
        self._config = config
        self._threads = GrammarThreads(THREADS, "grammar", config.max_bytes)

    async def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequestError that names the grammar's field if it is too large, too slow, or no grammar."""
        size = len(grammar.text.encode(errors="surrogatepass"))
        if size > self._config.max_bytes:
            reason = f"{size} bytes are too many; the server allows {self._config.max_bytes}"
            raise InvalidRequestError(grammar.field, reason)
        loop = asyncio.get_running_loop()
        # Reading the vocabulary takes its time once, for which no request is to blame.
        await loop.run_in_executor(self._threads, self._compiler.prepare)
        work = loop.run_in_executor(self._threads, self._compiler.matcher, grammar.text)
        try:
            await asyncio.wait_for(work, self._config.timeout)
        except asyncio.TimeoutError:
            reason = f"takes more than {self._config.timeout:g} seconds to compile, which the server allows"
            raise InvalidRequestError(grammar.field, reason) from None
        except GrammarError as error:
            raise InvalidRequestError(grammar.field, str(error)) from None

    def close(self) -> None:
        """Give back the threads; what they are about is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
