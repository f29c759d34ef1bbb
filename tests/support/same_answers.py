"""Runs a mixed batch with and without drafts, and compares everything that its clients read."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import takewhile
from random import Random
from typing import Any
from unittest.mock import patch

from fastdeploy_lp.config.speculation import METHODS
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.request.outputs import CompletionOutput
from fastdeploy_lp.request.trace import SKIPPED
from fastdeploy_lp.worker import guided_decoding
from support.drafters import KnowsMost
from support.inline_worker import InlineEngine, inline_engine
from support.mixed_batches import Catalogue, EngineOptions, Mix, MixedRequest, RequestSource, random_engine

KNOWN = "support.drafters:KnowsMost"
# Of an output: it depends on the machine's speed, or on other requests.
NOT_COMPARED = ("seconds", "cumulative_logprob")


@dataclass
class Answer:
    """Everything that a client reads of one request; lists have one entry for each of its completions."""

    completions: list[dict[str, Any]]
    names: list[str]
    prompt_logprobs: Any = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(len(each["token_ids"]) for each in self.completions)


@dataclass(frozen=True)
class Batch:
    """Requests, and the engine that answers them."""

    engine: EngineOptions
    requests: list[MixedRequest]


@dataclass
class Ran:
    """Answers by the request's place in its batch, and counts of the worker."""

    answers: dict[int, Answer]
    verified: int = 0
    accepted: int = 0
    preemptions: int = 0


@dataclass
class Drawing:
    """Draws batches; arguments of processors are drawn once."""

    mix: Mix
    processors: Sequence[str | type]
    _catalogue: Catalogue | None = field(default=None, init=False)

    async def batch(self, seed: str) -> Batch:
        """The batch of a seed."""
        rng = Random(seed)
        engine = random_engine(rng, self.mix, self.processors)
        plain = engine.declared()
        async with inline_engine(plain.fd_config, plain.declared) as running:
            inputs, vocab_size = running.client.inputs, self.mix.vocab_size
            self._catalogue = self._catalogue or Catalogue(plain.declared, inputs, vocab_size)
            names = sorted(each.name for each in plain.declared)
            source = RequestSource(rng, self.mix, names, self._catalogue)
            return Batch(engine, [source.draw(inputs) for _ in range(self.mix.requests)])


def methods(model: str) -> dict[str, dict[str, Any]]:
    """Settings of speculation by the name of a method: each of the table, a drafter that is often wrong, and all.

    model: a model for methods that need one.
    """
    needed: dict[str, dict[str, Any]] = {"draft_model": {"model": model}}
    each = {method: {"method": method, **needed.get(method, {})} for method in (*METHODS, KNOWN)}
    return {**each, "all": {name: value for one in each.values() for name, value in one.items()} | {"method": [*each]}}


def random_speculation(rng: Random, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of speculation, of which the ones that are not given are drawn."""
    shortest = rng.choice([1, 2, 3])
    return {
        "num_speculative_tokens": rng.choice([1, 2, 5, 8, 16]),
        "prompt_lookup_min": shortest,
        "prompt_lookup_max": shortest + rng.choice([0, 3]),
        "adaptive": rng.random() < 0.2,
        **settings,
    }


async def run_batch(
    batch: Batch,
    speculation: dict[str, Any] | None = None,
    plain: Ran | None = None,
    only: Collection[int] | None = None,
    *,
    late_masks: bool = False,
) -> Ran:
    """Answers the requests of a batch, or only some of them, all of them at once.

    plain: the answers without drafts, which drafters may know. late_masks: steps wait for no mask of a grammar.
    """
    chosen = range(len(batch.requests)) if only is None else sorted(only)
    declared = batch.engine.declared(speculation)
    KnowsMost.outputs = {} if plain is None else _outputs_of(plain)
    async with AsyncExitStack() as stack:
        if late_masks:
            stack.enter_context(patch.object(guided_decoding, "GRACE_SECONDS", 0.0))
        engine = await stack.enter_async_context(inline_engine(declared.fd_config, declared.declared))
        begun: dict[int, Generation] = {}
        for place, request in enumerate(batch.requests):
            if place in chosen:
                begun[place] = await _begin(engine, place, request, plain)
            else:
                # Names of sequences, on which known drafts depend, are the same in a part of a batch.
                next(engine.preparation.serials)
        answers = await asyncio.gather(*(_answer(begun[place], batch.requests[place]) for place in chosen))
        stats = engine.worker.core.load().scheduler_stats
    return Ran(
        dict(zip(chosen, answers, strict=True)),
        sum(each.tokens for each in stats.drafts),
        sum(each.accepted for each in stats.drafts),
        stats.num_preemptions,
    )


def _outputs_of(plain: Ran) -> dict[str, list[int]]:
    return {
        name: completion["token_ids"]
        for answer in plain.answers.values()
        for name, completion in zip(answer.names, answer.completions, strict=True)
    }


async def _begin(engine: InlineEngine, place: int, request: MixedRequest, plain: Ran | None) -> Generation:
    foretold = None
    if plain is not None and request.foretold:
        foretold = _damaged(plain.answers[place].completions[0]["token_ids"], place)
    prompt, settled = request.settled(engine.client.inputs, foretold or None)
    sent = EngineRequest(f"r{place}", prompt, settled)
    (generation,) = await engine.client.generate([sent], stream=request.streams, bounded=False)
    return generation


def _damaged(tokens: Sequence[int], seed: int) -> list[int]:
    """The tokens with a few left out."""
    rng = Random(seed)
    return [token for token in tokens if rng.random() > 0.05]


async def _answer(generation: Generation, request: MixedRequest) -> Answer:
    completions = [CompletionOutput(index, "", []) for index in range(len(generation.completions))]
    answer = Answer([], generation.sequence_ids)
    try:
        if request.streams:
            await _stream(generation, completions, request.abort_after)
        else:
            output = await generation.result()
            completions = output.completions
        answer.prompt_logprobs = as_plain(generation.prompt_logprobs)
    except RequestFailedError as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.completions = [as_plain(each) for each in completions]
    return answer


async def _stream(generation: Generation, completions: list[CompletionOutput], abort_after: int | None) -> None:
    async with aclosing(generation.deltas()) as batches:
        async for deltas in batches:
            for delta in deltas:
                completions[delta.index].extend(delta)
            if abort_after is not None and sum(len(each.token_ids) for each in completions) >= abort_after:
                return


def as_plain(value: Any) -> Any:
    """Dicts, lists and numbers for the objects of an output, without `NOT_COMPARED`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.name not in NOT_COMPARED]
        return {name: as_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: as_plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [as_plain(each) for each in value]
    return value


@dataclass(frozen=True)
class Difference:
    """A field in which an answer with drafts is another one; `place` is the request's in its batch."""

    place: int
    path: str
    plain: str
    drafted: str

    def __str__(self) -> str:
        return f"request {self.place}: {self.path}: {self.plain} without drafts, {self.drafted} with them"


@dataclass
class Comparison:
    """Differences, and the number of tokens that were compared."""

    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)


def compare(batch: Batch, plain: Ran, drafted: Ran) -> Comparison:
    """Compares all answers; of a request that was aborted, or that failed while it streamed, as far as both go.

    A stream ends at an error with what its client has read, and pieces with drafts are larger.
    """
    found = Comparison()
    for place, one in plain.answers.items():
        other, request = drafted.answers[place], batch.requests[place]
        aborts = request.abort_after is not None
        if not aborts and one.error != other.error:
            found.differences.append(Difference(place, "error", repr(one.error), repr(other.error)))
        partial = aborts or (request.streams and one.error is not None)
        for path, left, right in _compared(one, other, partial=partial):
            if repr(left) != repr(right):
                found.differences.append(Difference(place, path, *_where(left, right)))
        found.tokens += min(one.num_tokens, other.num_tokens)
    return found


def _compared(one: Answer, other: Answer, *, partial: bool) -> list[tuple[str, Any, Any]]:
    pairs = [] if partial else [("prompt_logprobs", one.prompt_logprobs, other.prompt_logprobs)]
    for index, (left, right) in enumerate(zip(one.completions, other.completions, strict=True)):
        common = min(len(left["token_ids"]), len(right["token_ids"])) if partial else None
        for name in left:
            path = f"completions.{index}.{name}"
            pairs.append((path, *_comparable(name, left, right, common)))
    return pairs


def _comparable(name: str, left: dict[str, Any], right: dict[str, Any], common: int | None) -> tuple[Any, Any]:
    """A field of two completions, of partial ones as far as both have it; `common` is then their number of tokens."""
    one, other = left[name], right[name]
    if common is not None:
        if name == "text":
            shorter = min(len(one), len(other))
            return one[:shorter], other[:shorter]
        if not isinstance(one, list) or not isinstance(other, list):
            return None, None
        one, other = one[:common], other[:common]
    return _alike_traces(one, other) if name == "logits_processors_trace" and one and other else (one, other)


def _alike_traces(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[Any, Any]:
    """The traces up to a stage that only one of them skipped.

    A processor that cannot change the most likely token is skipped while every row of a round is greedy, and rounds
    with drafts have other rows.
    """
    if len(one) != len(other):
        return one, other
    cut = [_alike_stages(*pair) for pair in zip(one, other, strict=True)]
    return [each[0] for each in cut], [each[1] for each in cut]


def _alike_stages(one: dict[str, Any], other: dict[str, Any]) -> tuple[Any, Any]:
    def alike(pair: tuple[dict[str, Any], dict[str, Any]]) -> bool:
        return (pair[0]["status"] == SKIPPED) == (pair[1]["status"] == SKIPPED)

    pairs = list(takewhile(alike, zip(one["stages"], other["stages"], strict=False)))
    if len(pairs) == len(one["stages"]) == len(other["stages"]):
        return one, other
    return ({**one, "stages": [pair[0] for pair in pairs]}, {**other, "stages": [pair[1] for pair in pairs]})


def _where(left: Any, right: Any) -> tuple[str, str]:
    """The first entries of lists that differ, else the values."""
    if isinstance(left, list) and isinstance(right, list):
        for place, (one, other) in enumerate(zip(left, right, strict=False)):
            if repr(one) != repr(other):
                return f"[{place}] {one!r}"[:400], f"[{place}] {other!r}"[:400]
        return f"{len(left)} entries", f"{len(right)} entries"
    return repr(left)[:400], repr(right)[:400]
