"""A row without a usable logit ends its request, and no processor brings back what a mask rules out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from paddle import Tensor
from support.outcomes import engine_with, naming, run
from support.processors import Sets
from support.sequences import request

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.logits_mask import LogitsMask


class SetsToo(Sets): ...


SAMPLING: list[dict[str, Any]] = [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 5, "top_p": 0.5}]


@pytest.fixture(scope="module")
def setter() -> EngineCore:
    """An engine that every test leaves empty."""
    return engine_with(Sets, SetsToo)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize(
    "args",
    [
        {"value": np.nan},
        {"value": -np.inf},
        {"value": np.inf},
        {"value": np.nan, "tokens": [9]},
        {"value": np.inf, "tokens": [9]},
    ],
    ids=str,
)
def test_a_row_without_a_usable_logit_ends_its_request(
    setter: EngineCore, args: dict[str, Any], sampling: dict[str, Any]
) -> None:
    neighbours = [request(f"n{i}", [i + 1, 2, 3], max_tokens=2, seed=i, **sampling) for i in range(5)]
    alone = run(setter, *neighbours)
    spoilt = request("spoilt", [1, 2, 3], max_tokens=2, seed=1, selection=naming(Sets=args), **sampling)
    outcome = run(setter, *neighbours[:2], spoilt, *neighbours[2:])
    assert outcome.tokens == {**alone.tokens, "spoilt": []}
    assert set(outcome.errors) == {"spoilt"}
    assert outcome.errors["spoilt"] == "logits processor Sets left no token that can be sampled"


NAN, SOME = {"value": np.nan, "tokens": [9]}, {"value": 3.0, "tokens": [10]}
ALL = {"value": -np.inf}
FIRST = {"value": -np.inf, "tokens": list(range(256))}
SECOND = {"value": -np.inf, "tokens": list(range(256, 512))}
BIAS = {"logit_bias": dict.fromkeys(range(256), -np.inf)}


@pytest.mark.parametrize("order", [None, ("SetsToo", "Sets")])
@pytest.mark.parametrize(
    ("named", "blamed"),
    [
        # It wrote the NaN, though another one ran after it.
        ({"Sets": NAN, "SetsToo": SOME}, "logits processor Sets"),
        ({"Sets": SOME, "SetsToo": NAN}, "logits processor SetsToo"),
        ({"Sets": ALL, "SetsToo": {}}, "logits processor Sets"),
        ({"Sets": {}, "SetsToo": ALL}, "logits processor SetsToo"),
        ({"Sets": FIRST, "SetsToo": SECOND}, "logits processor {} and logits processor {}"),
        ({"LogitBiasLogitsProcessor": BIAS, "Sets": SECOND}, "logits processor LogitBiasLogitsProcessor and {Sets}"),
    ],
    ids=str,
)
def test_the_stage_at_fault_is_named(named: dict[str, Any], blamed: str, order: tuple[str, ...] | None) -> None:
    """Found by running the row's stages once more, whatever ran last, also for requests with an order of their own."""
    if order is not None and set(order) != set(named):
        pytest.skip("the order is of others")
    engine = engine_with(Sets, SetsToo)
    made = request("r", [1], max_tokens=2, selection=Selection(named=named, order=order))
    neighbours = [request("flat", [2], max_tokens=2), request("n", [3], max_tokens=2, selection=naming(SetsToo=SOME))]
    error = run(engine, *neighbours, made).errors["r"]
    expected = blamed.replace("{Sets}", "logits processor Sets").format(*(order or ("Sets", "SetsToo")))
    assert error == f"{expected} left no token that can be sampled"


def test_two_that_rule_everything_out_together_share_the_blame() -> None:
    """A processor and a field of the request, of which each would have left tokens."""
    engine = engine_with(Sets)
    made = request("r", [1], max_tokens=2, selection=naming(Sets=FIRST), allowed_token_ids=[3, 4])
    error = run(engine, made).errors["r"]
    assert error == "logits processor Sets and allowed_token_ids left no token that can be sampled"


def test_what_builtins_rule_out_for_a_request_is_its_own_mistake() -> None:
    engine = engine_with(Sets)
    chosen = naming(LogitBiasLogitsProcessor=BIAS)
    engine.add(request("r", [1], max_tokens=2, selection=chosen, allowed_token_ids=[3, 4]))
    assert engine.finish_preparing() == []
    (step,) = engine.step().steps
    assert step.error == (
        "logits processor LogitBiasLogitsProcessor and allowed_token_ids left no token that can be sampled"
    )
    assert step.by_request


def test_banning_all_tokens_but_one_is_fine() -> None:
    engine = engine_with(Sets)
    banned = {"value": -np.inf, "tokens": [token for token in range(512) if token != 77]}
    made = request("r", [1], max_tokens=3, temperature=1.0, seed=3, selection=naming(Sets=banned))
    assert run(engine, made).tokens == {"r": [77] * 3}


@dataclass
class Allow(LogitsMask):
    """A mask that leaves these tokens in slots that have any."""

    tokens: dict[int, list[int]]

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        for row, slot in enumerate(slots.tolist()):
            if slot in self.tokens:
                kept = logits[row, self.tokens[slot]].clone()
                logits[row] = -np.inf
                logits[row, self.tokens[slot]] = kept
        return logits


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_a_processor_cannot_revive_what_a_mask_rules_out(sampling: dict[str, Any]) -> None:
    engine = engine_with(Sets)
    engine.runner.mask = Allow({0: [400, 401]})
    raised = naming(Sets={"value": 1000.0, "tokens": [5, 6]}, LogitBiasLogitsProcessor={"logit_bias": {7: 1000.0}})
    masked = request("masked", [1], max_tokens=6, seed=1, selection=raised, **sampling)
    free = request("free", [1], max_tokens=6, seed=1, selection=raised, **sampling)
    outcome = run(engine, masked, free)
    assert outcome.errors == {}
    assert set(outcome.tokens["masked"]) <= {400, 401}
    assert set(outcome.tokens["free"]) <= {5, 6, 7}


def test_a_processor_that_bans_what_a_mask_allows_ends_the_request() -> None:
    engine = engine_with(Sets)
    # While its instances are built, the other request overtakes it.
    engine.runner.mask = Allow({slot: [400, 401] for slot in (0, 1)})
    banned = Selection(named={"Sets": {"value": -np.inf, "tokens": [400, 401]}})
    outcome = run(engine, request("r", [1], selection=banned), request("plain", [2], max_tokens=2))
    assert set(outcome.errors) == {"r"}
    assert "logits processor Sets left no token" in outcome.errors["r"]
