"""A part of `benchmarks/same_tokens.py`: random requests have the same answers with every method of speculation."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.mixed_batches import Mix, every_dialect
from support.same_answers import KNOWN, Batch, Drawing, Ran, compare, methods, random_speculation, run_batch
from support.tiny_checkpoint import write_tiny_checkpoint

VOCAB_SIZE = 512
REQUESTS, MAX_TOKENS = 20, 12
PRECISIONS = {"float32": None, "w8a8": "w8a8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_checkpoint(Path(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def processors() -> Iterator[list[str | type]]:
    with every_dialect(VOCAB_SIZE) as every:
        yield every


@pytest.fixture(scope="module", params=PRECISIONS)
def drawn(request: pytest.FixtureRequest, model: str, processors: list[str | type]) -> tuple[Batch, Ran]:
    """A batch, and its answers without drafts."""
    mix = Mix(model, VOCAB_SIZE, PRECISIONS[request.param], REQUESTS, MAX_TOKENS)

    async def drawn() -> tuple[Batch, Ran]:
        batch = await Drawing(mix, processors).batch(f"suite {request.param} 7")
        return batch, await run_batch(batch)

    return asyncio.run(drawn())


# Quantized products depend on the number of drafts, and not on the method that makes them.
DRAFTED = [*(("float32", method) for method in methods("")), *(("w8a8", method) for method in (KNOWN, "all"))]


@pytest.mark.parametrize(("drawn", "method"), DRAFTED, indirect=["drawn"], scope="module")
def test_answers_are_the_same_in_every_bit(drawn: tuple[Batch, Ran], model: str, method: str) -> None:
    batch, plain = drawn
    settings = random_speculation(Random(method), methods(model)[method])
    drafted = asyncio.run(run_batch(batch, {**settings, "adaptive": False}, plain))
    found = compare(batch, plain, drafted)
    assert not found.differences, "\n".join(map(str, found.differences))
    assert found.tokens > REQUESTS
    if method in (KNOWN, "all"):
        assert 0 < drafted.accepted < drafted.verified


def test_answers_are_the_same_if_masks_are_late(drawn: tuple[Batch, Ran], model: str) -> None:
    """A sequence is then held within a draft that was right so far."""
    batch, plain = drawn
    settings = random_speculation(Random(KNOWN), methods(model)[KNOWN])
    drafted = asyncio.run(run_batch(batch, {**settings, "adaptive": False}, plain, late_masks=True))
    assert not compare(batch, plain, drafted).differences


def test_requests_are_of_every_kind(drawn: tuple[Batch, Ran]) -> None:
    """Else the comparison would prove little."""
    batch, plain = drawn
    requests, answers = batch.requests, plain.answers.values()
    asked = {name for each in requests for name in each.fields}
    assert {"n", "logprobs", "seed", "stop", "guided_decoding", "logits_processors"} <= asked
    assert any(each.abort_after is not None for each in requests)
    assert any(len(each.completions) > 1 for each in answers)
    ends = {completion["finish_reason"] for each in answers for completion in each.completions}
    assert {"stop", "length"} <= ends
    assert any(each.error for each in answers)


def test_a_difference_is_found(drawn: tuple[Batch, Ran]) -> None:
    batch, plain = drawn
    place = next(each for each in plain.answers if compare(batch, only(plain, each), only(plain, each)).tokens > 1)
    other = copy.deepcopy(only(plain, place))
    (changed,) = other.answers.values()
    changed.completions[0]["token_ids"][0] += 1
    (difference,) = compare(batch, only(plain, place), other).differences
    assert (difference.place, difference.path) == (place, "completions.0.token_ids")


def only(ran: Ran, place: int) -> Ran:
    """The answer to one request."""
    return Ran({place: ran.answers[place]})
