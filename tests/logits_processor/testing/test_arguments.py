"""Arguments drawn from the schema of a model."""

from __future__ import annotations

import itertools
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fastdeploy_lp.logits_processor.testing.arguments import draw_arguments, integers_in

VOCAB_SIZE = 1000


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    texts: list[Annotated[str, Field(min_length=2, max_length=5)]] = Field(min_length=2)
    pair: tuple[int, float]


class Rich(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    needed: Annotated[int, Field(ge=3, lt=9)]
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    least: float = Field(default=1.0, ge=5.5)
    most: float = Field(default=1.0, le=-5.5)
    count: int = Field(default=1, le=4)
    kind: Literal["one", "two"] = "one"
    only: Literal["this"] = "this"
    on: bool = True
    tokens: set[int] | None = None
    biases: Annotated[dict[int, float], Field(min_length=2)] | None = None
    named: dict[str, bool] | None = None
    rule: Annotated[int, AfterValidator(even)] = 0
    anything: Any = None


class WithInner(BaseModel):
    inner: Inner | None = None
    inners: list[Inner] = []


def accepts(model: type[BaseModel]) -> Any:
    def accept(args: dict[str, Any]) -> bool:
        try:
            model.model_validate_json(json.dumps(args))
        except ValidationError:
            return False
        return True

    return accept


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("model", [Rich, WithInner])
def test_what_is_drawn_is_accepted(model: type[BaseModel], seed: int) -> None:
    drawn = draw_arguments(model, 6, vocab_size=VOCAB_SIZE, seed=seed, accepts=accepts(model))
    assert len(drawn) == 6
    assert all(first != second for first, second in itertools.combinations(drawn, 2))
    assert drawn == draw_arguments(model, 6, vocab_size=VOCAB_SIZE, seed=seed, accepts=accepts(model))


def test_every_argument_and_every_choice_comes_up() -> None:
    drawn = [
        args
        for seed in range(10)
        for args in draw_arguments(Rich, 6, vocab_size=VOCAB_SIZE, seed=seed, accepts=accepts(Rich))
    ]
    assert set().union(*drawn) == set(Rich.model_fields)
    assert {args["kind"] for args in drawn if "kind" in args} == {"one", "two"}
    assert {args.get("on") for args in drawn} == {True, False, None}
    tokens = {token for args in drawn for token in args.get("tokens") or []}
    assert min(tokens) >= 0
    assert VOCAB_SIZE / 2 < max(tokens) < VOCAB_SIZE


def test_a_model_that_accepts_nothing_gives_nothing() -> None:
    assert draw_arguments(Rich, 6, vocab_size=VOCAB_SIZE, seed=0, accepts=lambda _: False) == []


def test_integers_are_found_everywhere() -> None:
    value = {"a": [1, {"12": 0.5, "x": (3, True, "4")}], "b": None, "c": {7: -8}}
    assert sorted(integers_in(value)) == [-8, 1, 3, 7, 12]
