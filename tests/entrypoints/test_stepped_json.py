"""JSON in small steps: what the library reads, within bounds, and with other threads running in between."""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.entrypoints.openai.body.shape import KeyTwiceError, members_once
from fastdeploy_lp.entrypoints.stepped_json import Bounds, TooMuchError, load

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


def wide() -> Bounds:
    return Bounds(10**6, 10**6, 10**6, 100)


def outcome(read: Any, text: str) -> tuple[Any, ...]:
    try:
        return ("read", repr(read(text)))
    except json.JSONDecodeError as error:
        return (error.msg, error.pos)
    except KeyTwiceError:
        return ("twice",)
    except ValueError:
        return ("unreadable",)


def same(text: str) -> None:
    expected = outcome(lambda given: json.loads(given, object_pairs_hook=members_once), text)
    assert outcome(lambda given: load(given, wide(), members_once), text) == expected


@given(values, st.sampled_from([None, 1]))
def test_what_the_library_reads(value: Any, indent: int | None) -> None:
    same(json.dumps(value, indent=indent))


@settings(max_examples=300)
@given(values, st.randoms(use_true_random=False))
def test_what_the_library_refuses(value: Any, chance: random.Random) -> None:
    text = json.dumps(value)
    place = chance.randrange(len(text) + 1)
    same(text[:place] + chance.choice(["", ",", "]", "}", "1", " ", "x", '"', "\\", "-"]) + text[place + 1 :])


@pytest.mark.parametrize(
    ("text", "which"),
    [
        ("[" + "1," * 10 + "1]", "values"),
        ('["' + '","' * 10 + '"]', "values"),
        ("[" + "null,true,false,1," * 3 + "null]", "values"),
        ("[" + "[]," * 10 + "[]]", "containers"),
        ('{"a":1,"b":2,"c":3,"d":4}', "members"),
        ("[" * 10**6, "depth"),
        ('{"a":' * 10**6, "depth"),
    ],
)
def test_bounds(text: str, which: str) -> None:
    with pytest.raises(TooMuchError, match=f"^{which}$"):
        load(text, Bounds(values=10, members=3, containers=5, depth=3), members_once)
    if which != "depth":
        load(text, Bounds(values=20, members=4, containers=20, depth=3), members_once)


def test_other_threads_run_while_a_long_text_is_read() -> None:
    """A thread that counts gets the interpreter again and again; `json.loads` keeps it from the first to the last."""
    text, turns, ended = "[" + ",".join(["17"] * 400_000) + "]", 0, threading.Event()
    started = threading.Event()

    def read() -> None:
        started.wait()
        load(text, wide(), members_once)
        ended.set()

    interval = sys.getswitchinterval()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        sys.setswitchinterval(1e-5)
        started.set()
        while not ended.wait(0.0001):
            turns += 1
    finally:
        sys.setswitchinterval(interval)
        reader.join()
    assert turns > 10
