"""Grammars are refused before they reach the worker, within bounds of size and time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support.grammars import TINY_EOS, TINY_VOCAB, TinyGrammars
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.config import GuidedDecodingConfig
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.grammar_checker import GrammarChecker
from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler, GrammarMatcher
from fastdeploy_lp.guided_decoding.grammar import Grammar

FIELD = "guided_decoding.grammar"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def refusal(directory: Path, text: str, config: GuidedDecodingConfig | None = None) -> InvalidRequestError | None:
    checker = GrammarChecker(TinyGrammars(directory).compiler, config or GuidedDecodingConfig())
    try:
        asyncio.run(checker.check(Grammar(text, FIELD)))
    except InvalidRequestError as error:
        return error
    finally:
        checker.close()
    return None


def test_a_grammar_that_compiles_passes(directory: Path) -> None:
    assert refusal(directory, 'start: "a"') is None


def test_one_that_does_not_is_refused_with_the_reason(directory: Path) -> None:
    error = refusal(directory, "start: nothing")
    assert error is not None
    assert error.param == FIELD
    assert "nothing" in error.reason


def test_one_that_is_too_large_is_not_compiled(directory: Path) -> None:
    text = f'start: "{"é" * 50}"'
    size = len(text.encode())
    assert refusal(directory, text, GuidedDecodingConfig(max_bytes=size)) is None
    error = refusal(directory, text, GuidedDecodingConfig(max_bytes=size - 1))
    assert error is not None
    assert error.reason == f"{size} bytes are too many; the server allows {size - 1}"


class Endless(GrammarCompiler):
    """Compiles nothing until it is let go."""

    released = threading.Event()

    def matcher(self, grammar: str) -> GrammarMatcher:
        self.released.wait()
        return super().matcher(grammar)


def test_one_that_takes_too_long_is_given_up(directory: Path) -> None:
    compiler = Endless(directory, TINY_VOCAB, (TINY_EOS,), cache_size=8)
    checker = GrammarChecker(compiler, GuidedDecodingConfig(timeout=0.001))
    try:
        with pytest.raises(InvalidRequestError, match=r"takes more than 0\.001 seconds") as raised:
            asyncio.run(checker.check(Grammar('start: "a"', FIELD)))
        assert raised.value.param == FIELD
    finally:
        compiler.released.set()
        checker.close()


def test_the_loop_goes_on_meanwhile(directory: Path) -> None:
    async def both() -> list[str]:
        checker, order = GrammarChecker(TinyGrammars(directory).compiler, GuidedDecodingConfig()), list[str]()

        async def check() -> None:
            await checker.check(Grammar('start: "a"', FIELD))
            order.append("checked")

        task = asyncio.create_task(check())
        await asyncio.sleep(0)
        order.append("others")
        await task
        checker.close()
        return order

    assert asyncio.run(both()) == ["others", "checked"]
