"""Grammars that refer from rule to rule thousands of times do not end the process."""

from __future__ import annotations

import json
import threading

import pytest
from support.grammars import TINY_EOS, TinyGrammars, allowed

from fastdeploy_lp.config import GuidedDecodingConfig
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.guided_decoding.threads import GrammarThreads
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams

LIMIT = GuidedDecodingConfig().max_bytes


def rules(count: int) -> str:
    """Each rule is the next one."""
    return "start: r0\n" + "".join(f"r{n}:r{n + 1}\n" for n in range(count)) + f'r{count}:"x"\n'


def terminals(count: int) -> str:
    """Each terminal holds the next one in its middle."""
    return "start: R0\n" + "".join(f'R{n}:"x"R{n + 1}|"x"\n' for n in range(count)) + f'R{count}:"x"\n'


def references(count: int) -> str:
    """Each definition refers to the next one."""
    defs = {f"{n}": {"$ref": f"#/$defs/{n + 1}"} for n in range(count)} | {f"{count}": {"const": "x"}}
    params = GuidedDecodingParams(json={"$ref": "#/$defs/0", "$defs": defs})
    return grammar_of(params).text


@pytest.mark.parametrize("write", [rules, terminals, references])
def test_the_largest_grammar_that_is_allowed_has_room(grammars: TinyGrammars, write: object) -> None:
    assert callable(write)
    count = next(n for n in range(20_000, 0, -500) if len(write(n)) <= LIMIT)
    threads = GrammarThreads(1, "test", LIMIT)
    matcher = threads.submit(grammars.compiler.matcher, write(count)).result()
    threads.shutdown()
    # Followed by a thread that has the usual room.
    text = json.dumps("x") if write is references else "x"
    matcher.consume(grammars.tokens(text))
    assert matcher.is_complete or TINY_EOS in allowed(matcher)


def test_other_threads_keep_their_size() -> None:
    before = threading.stack_size()
    with GrammarThreads(1, "test", LIMIT) as threads:
        threads.submit(threading.get_ident).result()
    assert threading.stack_size() == before
