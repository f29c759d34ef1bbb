"""Checks grammars in other processes before their requests are sent."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from fastdeploy_lp.config import GuidedDecodingConfig
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.grammar_processes import GrammarProcesses
from fastdeploy_lp.guided_decoding.grammar import Grammar


@dataclass(eq=False)
class _Check:
    """A running trial and the number of requests waiting for it."""

    trial: asyncio.Task[str | None]
    waiting: int = 0


class GrammarChecker:
    """Refuses grammars that the worker could not compile or follow, with the reason; caches the latest verdicts.

    Requests with the same grammar share one trial, which is cancelled when the last of them leaves.
    """

    def __init__(self, processes: GrammarProcesses, config: GuidedDecodingConfig) -> None:
        self._processes = processes
        self._config = config
        self._checks: dict[bytes, _Check] = {}
        # Includes cancelled trials that are still ending their processes.
        self._trials: set[asyncio.Task[str | None]] = set()
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, grammar: Grammar, client: str = "") -> None:
        """Raises InvalidRequestError naming the grammar's field if the grammar is too large, too slow, or invalid.

        client: takes turns with other clients. Raises QueueFullError while too many grammars are being tried.
        """
        content = grammar.text.encode(errors="surrogatepass")
        if len(content) > self._config.max_bytes:
            reason = f"{len(content)} bytes are too many; the server allows {self._config.max_bytes}"
            raise InvalidRequestError(grammar.field, reason)
        refusal = await self._refusal(hashlib.sha256(content).digest(), grammar.text, client)
        if refusal is not None:
            raise InvalidRequestError(grammar.field, refusal)

    async def close(self) -> None:
        """Cancels trials and ends processes."""
        for trial in self._trials:
            trial.cancel()
        await asyncio.gather(*self._trials, return_exceptions=True)
        await self._processes.close()

    async def _refusal(self, name: bytes, text: str, client: str) -> str | None:
        if name in self._verdicts:
            self._verdicts.move_to_end(name)
            return self._verdicts[name]
        check = self._checks.get(name)
        if check is None:
            trial = asyncio.create_task(self._processes.refusal(text, client))
            self._trials.add(trial)
            trial.add_done_callback(lambda ended: self._ended(name, ended))
            check = self._checks[name] = _Check(trial)
        check.waiting += 1
        try:
            return await asyncio.shield(check.trial)
        finally:
            check.waiting -= 1
            if not check.waiting and not check.trial.done():
                # Later requests start a new trial.
                self._checks.pop(name, None)
                check.trial.cancel()

    def _ended(self, name: bytes, trial: asyncio.Task[str | None]) -> None:
        self._trials.discard(trial)
        check = self._checks.get(name)
        if check is not None and check.trial is trial:
            del self._checks[name]
        if trial.cancelled() or trial.exception() is not None:
            return
        self._verdicts[name] = trial.result()
        if len(self._verdicts) > self._config.cache_size:
            self._verdicts.popitem(last=False)
