"""Grammars that cannot be used are refused before they reach the worker, within bounds of size, time and memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.grammars import TINY_EOS, TINY_VOCAB, ambiguous, endless, write_unsuitable_tokenizer
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.config import GuidedDecodingConfig, ModelConfig
from fastdeploy_lp.engine.errors import InvalidRequestError, QueueFullError
from fastdeploy_lp.engine.helpers import grammar_checker
from fastdeploy_lp.engine.helpers.grammar_checker import GrammarChecker, GrammarProcesses
from fastdeploy_lp.guided_decoding.grammar import Grammar

FIELD = "guided_decoding.grammar"
BOUNDS = GuidedDecodingConfig()
PATIENT = 600.0
QUICK = Grammar('start: "a"', FIELD)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """The tiny model, as far as grammars are concerned."""
    config = tiny_fd_config(eos_token_ids=(TINY_EOS,)).model_config
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    return replace(config, directory=str(directory), vocab_size=TINY_VOCAB)


class Shared:
    """Checkers on one loop, which share the processes of their bounds."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._loop = asyncio.new_event_loop()
        self._checkers: dict[GuidedDecodingConfig, GrammarChecker] = {}

    def checker(self, bounds: GuidedDecodingConfig = BOUNDS) -> GrammarChecker:
        return self._checkers.setdefault(bounds, GrammarChecker(GrammarProcesses(self._model, bounds), bounds))

    def refusal(self, text: str, bounds: GuidedDecodingConfig = BOUNDS) -> InvalidRequestError | None:
        try:
            self._loop.run_until_complete(self.checker(bounds).check(Grammar(text, FIELD)))
        except InvalidRequestError as error:
            return error
        return None

    def patient_refusal(self, text: str, bounds: GuidedDecodingConfig = BOUNDS) -> str:
        """The reason; the server may refuse to try where its process gets too little of a core, beside busy ones."""
        deadline = time.monotonic() + PATIENT
        while True:
            try:
                error = self.refusal(text, bounds)
            except QueueFullError:
                if time.monotonic() > deadline:
                    raise
            else:
                assert error is not None
                return error.reason

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(scenario)

    def close(self) -> None:
        for checker in self._checkers.values():
            self._loop.run_until_complete(checker.close())
        self._loop.close()


@pytest.fixture(scope="module")
def shared(model: ModelConfig) -> Iterator[Shared]:
    made = Shared(model)
    yield made
    made.close()


def test_a_grammar_that_can_be_used_passes(shared: Shared) -> None:
    assert shared.refusal('start: "a"') is None
    assert shared.refusal("start: /[a-z]{3}/") is None


def test_one_that_does_not_compile_is_refused_with_the_reason(shared: Shared) -> None:
    for _ in range(2):
        error = shared.refusal("start: nothing")
        assert error is not None
        assert error.param == FIELD
        assert "nothing" in error.reason


def test_one_that_is_too_large_is_not_compiled(shared: Shared) -> None:
    text = f'start: "{"é" * 50}"'
    size = len(text.encode())
    assert shared.refusal(text, GuidedDecodingConfig(max_bytes=size)) is None
    error = shared.refusal(text, GuidedDecodingConfig(max_bytes=size - 1))
    assert error is not None
    assert error.reason == f"{size} bytes are too many; the server allows {size - 1}"


@pytest.fixture
def own_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow grammars keep the priority of the tests: at the lowest one, half a second takes minutes beside others."""
    monkeypatch.setattr(grammar_checker, "SLOW_NICENESS", 0)


@pytest.mark.usefixtures("own_priority")
def test_one_that_compiles_without_end_is_given_up(shared: Shared) -> None:
    reason = shared.patient_refusal(endless(), GuidedDecodingConfig(timeout=1.0))
    assert "takes more than 1 seconds to compile" in reason


@pytest.mark.usefixtures("own_priority")
def test_one_whose_masks_have_no_end_is_refused(shared: Shared) -> None:
    """It compiles in a moment; its first mask takes the library many seconds."""
    assert "tokens that it allows take more than 0.5 seconds to find" in shared.patient_refusal(ambiguous())


@pytest.mark.usefixtures("own_priority")
def test_one_whose_first_mask_exceeds_the_librarys_limits_is_refused(shared: Shared) -> None:
    many = "start: s*\ns: " + " | ".join(f'"k{n}" /[a-z]{{1,9}}/' for n in range(3000))
    assert "max is 2000" in shared.patient_refusal(many)


@asynccontextmanager
async def closing(model: ModelConfig, most: int = 64) -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker(GrammarProcesses(model, BOUNDS, most), BOUNDS)
    try:
        yield checker
    finally:
        await checker.close()


@contextmanager
def turns_taken(checker: GrammarChecker) -> Iterator[None]:
    """No further trial begins."""
    turns = checker._processes._pool._turns
    free, turns._free = turns._free, 0
    yield
    for _ in range(free):
        turns.give_back()


def test_slow_grammars_hold_up_no_quick_one(model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that compile without end two go on aside and the others are refused, so that the last has its turn."""
    monkeypatch.setattr(grammar_checker, "QUICK_SECONDS", 0.02)

    async def run() -> None:
        async with closing(model) as checker:
            slow = [asyncio.create_task(checker.check(Grammar(endless(n), FIELD))) for n in range(6)]
            await asyncio.sleep(0)
            await checker.check(QUICK)
            # Those that are aside have seconds left; the last before the quick one may still have its turn.
            done = [each for each in slow if each.done()]
            assert 3 <= len(done) <= len(slow) - grammar_checker.SLOW_PROCESSES
            assert all(isinstance(each.exception(), QueueFullError) for each in done)
            for each in slow:
                each.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(run())


def test_the_time_of_a_grammar_that_waits_does_not_count(shared: Shared) -> None:
    grammar = Grammar('start: "it waits"', FIELD)

    async def run() -> None:
        checker = shared.checker()
        with turns_taken(checker):
            waiting = asyncio.create_task(checker.check(grammar))
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done()
        await waiting

    shared.run(run())


def test_no_more_wait_than_have_room(model: ModelConfig) -> None:
    async def run() -> None:
        async with closing(model, most=8) as checker:
            with turns_taken(checker):
                mine = [asyncio.create_task(checker.check(Grammar(f'start: "{n}"', FIELD), "me")) for n in range(3)]
                other = asyncio.create_task(checker.check(Grammar('start: "z"', FIELD), "other"))
                done, _ = await asyncio.wait({*mine, other}, timeout=0.05)
                (refused,) = done
                assert refused is mine[2]
                with pytest.raises(QueueFullError, match="2 requests of this client wait"):
                    await refused
            await asyncio.gather(*mine[:2], other)

    asyncio.run(run())


def test_one_that_nobody_waits_for_any_more_leaves_the_queue(shared: Shared) -> None:
    grammar = Grammar('start: "nobody waits"', FIELD)

    async def run() -> None:
        checker = shared.checker()
        turns = checker._processes._pool._turns
        with turns_taken(checker):
            first, second = (asyncio.create_task(checker.check(grammar)) for _ in range(2))
            await asyncio.wait({first}, timeout=0.05)
            assert turns.num_waiting == 1
            first.cancel()
            await asyncio.wait({first})
            assert turns.num_waiting == 1
            second.cancel()
            await asyncio.wait({second})
            await asyncio.sleep(0)
            assert turns.num_waiting == 0
        await checker.check(grammar)

    shared.run(run())


def test_one_that_is_abandoned_while_it_compiles_ends_its_process(shared: Shared) -> None:
    async def run() -> None:
        checker = shared.checker()
        await checker.check(QUICK)
        (process,) = checker._processes._pool.idle
        abandoned = asyncio.create_task(checker.check(Grammar(endless(), FIELD)))
        await asyncio.wait({abandoned}, timeout=0.05)
        abandoned.cancel()
        await process.status()
        await checker.check(Grammar('start: "b"', FIELD))

    shared.run(run())


def test_requests_with_one_grammar_share_a_trial(shared: Shared) -> None:
    grammar = Grammar('start: "shared"', FIELD)

    async def run() -> None:
        checker = shared.checker()
        with turns_taken(checker):
            checks = [asyncio.create_task(checker.check(grammar)) for _ in range(8)]
            await asyncio.wait(checks, timeout=0.05)
            assert checker._processes._pool._turns.num_waiting == 1
        await asyncio.gather(*checks)
        with turns_taken(checker):
            await checker.check(grammar)

    shared.run(run())


def test_a_tokenizer_that_does_not_suit_grammars_is_the_reason_of_the_refusal(
    model: ModelConfig, tmp_path: Path
) -> None:
    write_unsuitable_tokenizer(write_tiny_checkpoint(tmp_path))
    own = Shared(replace(model, directory=str(tmp_path)))
    try:
        for _ in range(2):
            assert "tokenizer does not suit guided decoding" in str(own.refusal(QUICK.text))
    finally:
        own.close()
