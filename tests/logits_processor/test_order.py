"""Which processors a request goes through, and in which order."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from paddle import Tensor
from support.hash_bias import RequestThree, Vllm, reference
from support.processors import Doubles, SetsToFive
from support.recording import After, Before, forget
from support.sequences import request, run_to_end
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import (
    LogitsProcessor,
    LogitsProcessorChain,
    RequestArgsValidator,
    load_processors,
)
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.worker.engine_core import EngineCore

TOKEN = 9
ARGS = {"order_token": TOKEN}


class Living:
    """Counts the instances of the classes that mix it in."""

    alive: ClassVar[int] = 0

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)  # type: ignore[call-arg]
        Living.alive += 1

    def __del__(self) -> None:
        Living.alive -= 1


class Five(Living, SetsToFive): ...


class Double(Living, Doubles): ...


class Constant(LogitsProcessor):
    """Adds 1 to its token in every row it is shown, whoever asks for it."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        # As processors do that FastDeploy's document describes: the r-th row is the r-th active slot.
        self._rows = range(len(active))

    def apply(self, logits: Tensor) -> Tensor:
        for row in self._rows:
            logits[row, 3] = logits[row, 3] + 1.0
        return logits


class Nines(Constant):
    """Forces token 9 in every row it is shown."""

    def apply(self, logits: Tensor) -> Tensor:
        for row in self._rows:
            logits[row, 9] = 1000.0
        return logits


def engine_of(*found: Any, max_num_seqs: int = 8) -> tuple[EngineCore, RequestArgsValidator]:
    """Processors, classes or (alias, class), between two recorders; and what checks requests for them."""
    forget()
    config = tiny_fd_config(max_num_seqs=max_num_seqs)
    specs: list[str] = []
    objects: dict[str, object] = {}
    for each in (Before, *found, After):
        alias, what = each if isinstance(each, tuple) else ("", each)
        spec = f"{alias}={spec_of_any(what)}" if alias else spec_of_any(what)
        if not isinstance(what, str):
            objects[spec] = what
        specs.append(spec)
    declared = load_processors(specs, objects)
    return EngineCore(config, LogitsProcessorChain(declared, config)), RequestArgsValidator(declared, 512)


def spec_of_any(what: Any) -> str:
    return what if isinstance(what, str) else spec_of(what)


def named(**params: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """These processors, between the recorders."""
    return {"Before": {}, **params, "After": {}}


def listed(*names: str, args: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """These processors in this order, between the recorders."""
    own = [{"name": name, "params": ARGS if args is None else args} for name in names]
    return [{"name": "Before"}, *own, {"name": "After"}]


def ask(validator: RequestArgsValidator, request_id: str, max_tokens: int = 3, **form: Any) -> AddRequest:
    """A request as the API process passes it on."""
    selection = validator.validate(SamplingParams(**form))
    return request(request_id, [5, 6, len(request_id)], max_tokens=max_tokens, selection=selection)


def assert_token_became(request_id: str, steps: int, five_first: bool | None) -> None:
    for step in range(steps):
        expected = Before.rows[request_id, step].copy()
        if five_first is not None:
            expected[TOKEN] = 10.0 if five_first else 5.0
        np.testing.assert_array_equal(After.rows[request_id, step].view(np.uint32), expected.view(np.uint32))


def test_a_list_is_the_order_for_its_request_alone() -> None:
    engine, validator = engine_of(Five, Double)
    requests = [
        ask(validator, "flat", logits_processors_args=ARGS),
        ask(validator, "reversed", logits_processors=listed("Double", "Five")),
        ask(validator, "declared", logits_processors=listed("Five", "Double")),
        ask(validator, "plain"),
        ask(validator, "reversed again", logits_processors=listed("Double", "Five")),
        ask(validator, "dict", logits_processors=named(Double=ARGS, Five=ARGS)),
    ]
    ran = run_to_end(engine, requests)
    assert all(len(each.token_ids) == 3 for each in ran.values())
    for request_id, five_first in {
        "flat": True,
        "reversed": False,
        "declared": True,
        "plain": None,
        "reversed again": False,
        # An object's members have no order.
        "dict": True,
    }.items():
        assert_token_became(request_id, 3, five_first)


def test_requests_of_several_orders_come_and_go() -> None:
    engine, validator = engine_of(Five, Double, max_num_seqs=3)
    forms: list[dict[str, Any]] = [
        {"logits_processors": listed("Double", "Five")},
        {"logits_processors_args": ARGS},
        {"logits_processors": [{"name": "After"}, {"name": "Before"}]},
        {},
    ]
    requests = [ask(validator, f"r{index}", 1 + index % 4, **forms[index % 4]) for index in range(24)]
    ran = run_to_end(engine, requests)
    for index in range(24):
        assert len(ran[f"r{index}"].token_ids) == 1 + index % 4
        if index % 4 != 2:
            assert_token_became(f"r{index}", 1 + index % 4, (False, True, None, None)[index % 4])


def test_the_instances_of_an_order_serve_its_next_requests() -> None:
    # Engines of other tests are cycles, and their instances would end at any time.
    gc.collect()
    engine, validator = engine_of(Five, Double)
    at_first = Living.alive
    reversed_order = {"logits_processors": listed("Double", "Five")}
    for request_id, max_tokens in (("short", 2), ("long", 4)):
        engine.add(ask(validator, request_id, max_tokens, **reversed_order))
    run_to_end(engine, [ask(validator, "plain", 9)])
    assert Living.alive - at_first == 2
    for request_id in ("next", "after that"):
        run_to_end(engine, [ask(validator, request_id, 2, **reversed_order)])
    assert Living.alive - at_first == 2
    engine.add(ask(validator, "aborted", 9, **reversed_order))
    engine.step()
    engine.abort(["aborted"])
    assert Living.alive - at_first == 2


@pytest.mark.parametrize("cls", [Vllm, RequestThree])
def test_stateful_dialects_follow_their_own_rows_in_every_order(cls: type) -> None:
    engine, validator = engine_of(cls, Double)
    hash_args = {"hash_bias": [40, 2.5]}
    order = [
        {"name": "Before"},
        {"name": "Double", "params": ARGS},
        {"name": cls.__name__, "params": hash_args},
        {"name": "After"},
    ]
    requests = []
    for index in range(6):
        form = {"logits_processors": order} if index % 2 else {"logits_processors": named(**{cls.__name__: hash_args})}
        requests.append(ask(validator, f"{index}", 2 + index % 3, **form))
    ran = run_to_end(engine, requests)
    for index, made in enumerate(requests):
        output = ran[made.request_id].token_ids
        for step in range(len(output)):
            expected = Before.rows[made.request_id, step].copy()
            if index % 2:
                expected[TOKEN] *= 2
            reference(expected, cls.__name__, [40, 2.5], made.prompt_token_ids, output[:step])
            np.testing.assert_array_equal(After.rows[made.request_id, step], expected)


def test_one_class_stands_in_the_chain_twice_with_arguments_of_its_own() -> None:
    builtin = "LogitBiasLogitsProcessor"
    engine, validator = engine_of(builtin, ("second", builtin), ("twice", Double), Double)
    both = {"second": {"logit_bias": {"7": 2.0}}, builtin: {"logit_bias": {"7": 0.5, "8": 1.0}}}
    run_to_end(
        engine,
        [
            ask(validator, "both", logits_processors=named(**{builtin: both[builtin], "second": both["second"]})),
            ask(validator, "one", logits_processors=named(second=both["second"])),
            ask(validator, "doubled", logits_processors=named(twice=ARGS, Double={"order_token": 10})),
            ask(validator, "flat", logits_processors_args={"logit_bias": {"7": 1.0}, **ARGS}),
        ],
    )
    expected: dict[str, dict[int, tuple[float, float]]] = {
        "both": {7: (1.0, 2.5), 8: (1.0, 1.0)},
        "one": {7: (1.0, 2.0)},
        "doubled": {TOKEN: (2.0, 0.0), 10: (2.0, 0.0)},
        "flat": {7: (1.0, 2.0), TOKEN: (4.0, 0.0)},
    }
    for request_id, changes in expected.items():
        row = Before.rows[request_id, 0].copy()
        for token, (factor, summand) in changes.items():
            row[token] = row[token] * factor + summand
        np.testing.assert_allclose(After.rows[request_id, 0], row, rtol=1e-6)
        untouched = [token for token in range(512) if token not in changes]
        np.testing.assert_array_equal(After.rows[request_id, 0][untouched], row[untouched])


def test_a_request_that_names_processors_is_hidden_from_the_others() -> None:
    engine, validator = engine_of(Five, Double, Constant)
    run_to_end(
        engine,
        [
            ask(validator, "plain"),
            ask(validator, "names others", logits_processors=named(Double=ARGS)),
            ask(validator, "names none", logits_processors=named()),
            ask(validator, "names it", logits_processors=named(Constant={})),
            ask(validator, "other order", logits_processors=[{"name": "Double", "params": ARGS}, *listed()]),
        ],
    )

    def change(request_id: str) -> dict[int, float]:
        difference = After.rows[request_id, 0] - Before.rows[request_id, 0]
        return {int(token): float(difference[token]) for token in np.flatnonzero(difference)}

    assert set(change("plain")) == {3}
    assert set(change("names it")) == {3}
    assert set(change("names none")) == set()
    assert set(change("names others")) == {TOKEN}
    # Doubled before the first recorder.
    assert set(change("other order")) == set()


@pytest.mark.parametrize("nothing", [{}, []], ids=str)
def test_an_empty_choice_means_no_processor_at_all(nothing: Any) -> None:
    engine, validator = engine_of(Nines)
    forced = run_to_end(engine, [ask(validator, "plain", 2), ask(validator, "none", 2, logits_processors=nothing)])
    assert forced["plain"].token_ids == [9, 9]
    assert 9 not in forced["none"].token_ids


def test_several_completions_are_sequences_that_each_go_through_the_chain() -> None:
    engine, validator = engine_of("LogitBiasLogitsProcessor")
    selection = validator.validate(SamplingParams(n=3, logit_bias={7: 1000.0}))
    requests = [
        request(f"r-{index}", [1, 2], temperature=1.0, seed=index, max_tokens=2, selection=selection)
        for index in range(3)
    ]
    ran = run_to_end(engine, requests)
    assert {request_id: each.token_ids for request_id, each in ran.items()} == {f"r-{i}": [7, 7] for i in range(3)}
    stats = engine.runner.chain.stats["LogitBiasLogitsProcessor"]
    assert (stats.requests, stats.rows) == (3, 6)
