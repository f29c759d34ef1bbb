"""What a processor writes to `share_inputs` reaches no other request: the write raises, or goes to a copy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import writers
from support.outcomes import Outcome, engine_with, naming, run
from support.sequences import request

from fastdeploy_lp.logits_processor.processor_args import ReadOnlyError, ReadOnlyList
from fastdeploy_lp.messages import AddRequest

NUM_REQUESTS, VICTIM, MAX_TOKENS = 6, 3, 3
BIAS = {5: 1.0, 6: -2.0}


def crowd(name: str = "", **params: Any) -> list[AddRequest]:
    """A victim between neighbours, greedy and drawn ones; without a name it is one of them."""
    made = []
    for index in range(NUM_REQUESTS):
        # Both name LogitBias with the very arguments that the writer sees of its own.
        others = {name: params} if name and index == VICTIM else {}
        selection = naming(LogitBiasLogitsProcessor={"logit_bias": dict(BIAS)}, **others)
        sampling = {"temperature": 0.9, "seed": index} if index % 2 else {}
        prompt = [index + 1, 2 * index + 1, 5]
        made.append(request(f"r{index}", prompt, max_tokens=MAX_TOKENS, selection=selection, **sampling))
    return made


@pytest.fixture(scope="module")
def calm() -> Outcome:
    """The same crowd when nobody writes."""
    return run(engine_with(writers.Writes), *crowd())


def require_calm(outcome: Outcome, calm: Outcome, *, ended: set[str]) -> None:
    for request_id in calm.tokens.keys() - ended:
        assert outcome.tokens[request_id] == calm.tokens[request_id]
        for step in range(MAX_TOKENS):
            row, expected = outcome.rows[request_id, step], calm.rows[request_id, step]
            np.testing.assert_array_equal(row.view(np.uint32), expected.view(np.uint32), err_msg=request_id)


@pytest.mark.parametrize("place", writers.REFUSED)
def test_a_write_ends_its_own_request_with_an_error_and_no_other(place: str, calm: Outcome) -> None:
    engine = engine_with(writers.Writes)
    outcome = run(engine, *crowd("Writes", place=place))
    assert set(outcome.errors) == {f"r{VICTIM}"}
    assert outcome.errors[f"r{VICTIM}"].startswith("logits processor Writes failed: ")
    require_calm(outcome, calm, ended={f"r{VICTIM}"})
    assert engine.scheduler.num_running == 0


@pytest.mark.parametrize("place", writers.COPIES)
def test_a_write_to_a_copy_changes_nothing(place: str, calm: Outcome) -> None:
    requests = crowd("Writes", place=place, logit_bias={5: 1.0})
    for made in requests:
        made.params.logit_bias = {9: 1.0}
    outcome = run(engine_with(writers.Writes), *requests)
    assert outcome.errors == {}
    require_calm(outcome, calm, ended=set())


def test_processors_of_one_request_share_no_nested_argument() -> None:
    """Flat arguments are for every processor: what one makes of its own the next one does not see."""
    flat = {"place": "nested args", "logit_bias": {5: 1.0}}
    outcome = run(engine_with(writers.Writes), request("r0", [1, 2], max_tokens=2, logits_processors_args=dict(flat)))
    alone = run(engine_with(), request("r0", [1, 2], max_tokens=2, logits_processors_args=dict(flat)))
    assert outcome.tokens == alone.tokens
    assert flat["logit_bias"] == {5: 1.0}


@pytest.mark.parametrize(
    ("found", "name", "place"),
    [
        (writers.VllmWrites, "VllmWrites", "output"),
        (writers.VllmWrites, "VllmWrites", "prompt"),
        (writers.RequestWrites, "RequestWrites", "output"),
        (writers.RequestWrites, "RequestWrites", "prompt"),
        (writers.PLUGIN, "PluginWrites", "output"),
    ],
)
def test_lists_of_tokens_are_read_only_in_every_dialect(found: Any, name: str, place: str, calm: Outcome) -> None:
    outcome = run(engine_with(found), *crowd(name, place=place))
    assert set(outcome.errors) == {f"r{VICTIM}"}
    assert outcome.errors[f"r{VICTIM}"].startswith(f"logits processor {name} failed: ReadOnlyError: ")
    require_calm(outcome, calm, ended={f"r{VICTIM}"})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda tokens: tokens.append(1),
    "extend": lambda tokens: tokens.extend([1]),
    "insert": lambda tokens: tokens.insert(0, 1),
    "pop": lambda tokens: tokens.pop(),
    "remove": lambda tokens: tokens.remove(3),
    "clear": lambda tokens: tokens.clear(),
    "sort": lambda tokens: tokens.sort(key=int),
    "reverse": lambda tokens: tokens.reverse(),
    "item": lambda tokens: tokens.__setitem__(0, 1),
    "slice": lambda tokens: tokens.__setitem__(slice(None), []),
    "delete": lambda tokens: tokens.__delitem__(0),
    "iadd": lambda tokens: tokens.__iadd__([1]),
    "imul": lambda tokens: tokens.__imul__(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_read_only_list_refuses_every_change(change: str) -> None:
    tokens = ReadOnlyList([3, 1, 2])
    with pytest.raises(ReadOnlyError, match="read-only"):
        CHANGES[change](tokens)
    assert tokens == [3, 1, 2]


def test_no_method_of_a_list_that_changes_it_is_forgotten() -> None:
    reading = {"copy", "count", "index"}
    public = {name for name in vars(list) if not name.startswith("_")} - reading
    special = {"__setitem__", "__delitem__", "__iadd__", "__imul__"}
    assert {name for name in vars(ReadOnlyList) if name in public | special} == public | special


def test_copies_of_a_read_only_list_are_lists_of_ones_own() -> None:
    tokens = ReadOnlyList([3, 1, 2])
    made = [tokens.copy(), list(tokens), tokens[:], tokens + [4][:0], copy.copy(tokens), copy.deepcopy(tokens)]
    for each in [*made, pickle.loads(pickle.dumps(tokens))]:
        assert type(each) is list
        assert each == [3, 1, 2]


def test_the_engine_appends_and_every_reader_sees_it() -> None:
    tokens: list[int] = ReadOnlyList()
    reader = tokens
    list.append(tokens, 7)
    assert reader == [7]
