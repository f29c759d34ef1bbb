"""Processors that see a request in one phase of its output only, in every dialect, beside requests without phases."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from paddle import Tensor
from support.grammars import TINY_EOS
from support.rewinding import Rewinds
from support.sequences import request
from support.tiny import tiny_fd_config, write_tiny_checkpoint
from tokenizers import Tokenizer

from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorChain, Selection, load_processors, vllm_v1
from fastdeploy_lp.messages import AddRequest, SequenceStep
from fastdeploy_lp.request.phase import NO_PARTS, PhasePosition, phase_of
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.worker.engine_core import EngineCore

# A token that the tiny model does not choose by itself in these tests.
WANTED = 77


class _Wants(LogitsProcessor):
    """Sets one token of every row that it sees, and notes the request and the number of its output tokens."""

    seen: ClassVar[list[tuple[str, int]]]

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            self.seen.append((share_inputs["req_ids"][slot], len(share_inputs["output_token_ids"][slot])))

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, WANTED] = 1e4
        return logits


class EveryRow(_Wants):
    seen: ClassVar[list[tuple[str, int]]] = []


class UsersOnly(_Wants):
    only_with_args = True
    accepts_any_args = True
    seen: ClassVar[list[tuple[str, int]]] = []


class AfterFilters(UsersOnly):
    """The same on the final distribution of rows that are drawn."""

    stage = "filtered"
    seen: ClassVar[list[tuple[str, int]]] = []


class Batched(vllm_v1.LogitsProcessor):
    """The same in vLLM's interface, which follows the batch by its changes."""

    seen: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.outputs: dict[int, list[int]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.outputs.pop(row, None)
        for row, params, _, output in batch_update.added:
            if (params.extra_args or {}).get("wants"):
                self.outputs[row] = output
            else:
                self.outputs.pop(row, None)
        for source, target, direction in batch_update.moved:
            mine, other = self.outputs.pop(source, None), self.outputs.pop(target, None)
            if mine is not None:
                self.outputs[target] = mine
            if other is not None and direction is vllm_v1.MoveDirectionality.SWAP:
                self.outputs[source] = other

    def apply(self, logits: Tensor) -> Tensor:
        for row, output in self.outputs.items():
            self.seen.append(("", len(output)))
            logits[row, WANTED] = 1e4
        return logits


class OneEach(vllm_v1.AdapterLogitsProcessor):
    """The same for each request."""

    seen: ClassVar[list[tuple[str, int]]] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], Tensor], Tensor] | None:
        if not (params.extra_args or {}).get("wants"):
            return None

        def wants(output: list[int], row: Tensor) -> Tensor:
            self.seen.append(("", len(output)))
            row[WANTED] = 1e4
            return row

        return wants


class Writes(LogitsProcessor):
    """Writes the tokens `write` at the beginning of an output."""

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._next: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._next = []
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            write = share_inputs["logits_processors_args"][slot].get("write") or []
            step = int(share_inputs["step_idx"][slot, 0])
            self._next.append(write[step] if step < len(write) else None)

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._next):
            if token is not None:
                logits[row, token] = 1e6
        return logits


class Fails(LogitsProcessor):
    """Raises as soon as it sees a row."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        if not share_inputs["stop_flags"].all():
            raise RuntimeError("it has seen a row")

    def apply(self, logits: Tensor) -> Tensor:
        return logits


WANTING = {cls.__name__: cls for cls in (EveryRow, UsersOnly, AfterFilters, Batched, OneEach)}
ALL = [*WANTING.values(), Writes, Fails, Rewinds]
SPECS = {spec_of(cls): cls for cls in ALL}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    for cls in WANTING.values():
        cls.seen.clear()


@pytest.fixture
def engine(directory: Path) -> Callable[..., EngineCore]:
    def make(**config: Any) -> EngineCore:
        policy = StructuredOutputsConfig(max_faults=0)
        fd_config = tiny_fd_config(**{"eos_token_ids": (TINY_EOS,), "policy": policy, **config})
        fd_config = replace(fd_config, model_config=replace(fd_config.model_config, directory=str(directory)))
        return EngineCore(fd_config, LogitsProcessorChain(load_processors(list(SPECS), SPECS), fd_config))

    return make


def asks(
    name: str, processor: str, when: dict[str, Any] | None, write: list[int], *, shadow: bool = False, **params: Any
) -> AddRequest:
    named: dict[str, dict[str, Any]] = {"Writes": {"write": write}}
    args = {"wants": True} if processor not in ("EveryRow", "Fails") else {}
    phases = {} if when is None else {processor: phase_of(when, "when", NO_PARTS)}
    selection = Selection(named=named | {processor: args}, when=phases, shadow=(processor,) if shadow else ())
    # Processors after the filters see rows that are drawn.
    sampling = {"temperature": 0.3, "seed": 5} if processor == "AfterFilters" else {}
    params = {"max_tokens": 24, "ignore_eos": True, **sampling, **params}
    return request(name, [1, 2, 3], selection=selection, **params)


def run(core: EngineCore, *requests: AddRequest) -> dict[str, list[SequenceStep]]:
    for each in requests:
        core.add(each)
    steps: dict[str, list[SequenceStep]] = {}
    while core.has_work:
        for step in core.step().steps:
            steps.setdefault(step.request_id, []).append(step)
    return steps


def tokens_of(steps: list[SequenceStep]) -> list[int]:
    assert [step.error for step in steps] == [None] * len(steps)
    return [token for step in steps for token in step.token_ids]


def inside(when: dict[str, Any] | None, tokens: list[int], tokenizer: Tokenizer) -> list[bool]:
    """For each token, whether it belongs to the phase; all bytes of the tiny model's texts are ASCII here."""
    position = PhasePosition(phase_of(when or {"after_tokens": 0}, "when", NO_PARTS))
    found = []
    for token in tokens:
        found.append(position.inside)
        position.push(tokenizer.decode([token], skip_special_tokens=False).encode())
    return found


def written(tokenizer: Tokenizer, choice: random.Random) -> list[int]:
    """Text with the markers of all phases, each in several tokens."""
    text = "".join(choice.choices(["the ", "dog", "<", "</t", " look"], k=choice.randrange(4))) + "</t>"
    later = "".join(choice.choices(["the ", "ab", "<b"], k=choice.randrange(4))) + "<e>"
    found: list[int] = []
    for piece in (text, later):
        while piece:
            size = choice.randrange(1, len(piece) + 1)
            found += tokenizer.encode(piece[:size], add_special_tokens=False).ids
            piece = piece[size:]
    return found


WHENS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"after": "</t>"},
    {"before": "</t>"},
    {"after": "</t>", "before": "<e>"},
    {"after_tokens": 5},
    {"after": "</t>", "after_tokens": 20},
    {"before": "<e>", "after_tokens": 2},
    {"after": "never"},
)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "preempted": {"num_blocks": 24},
    "speculative": {"speculation": Speculation("ngram", num_speculative_tokens=4, adaptive=False)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("processor", WANTING)
def test_a_processor_sees_exactly_its_phase(
    engine: Callable[..., EngineCore], tokenizer: Tokenizer, processor: str, way: str
) -> None:
    core, choice = engine(**WAYS[way]), random.Random(len(processor))
    requests, phases = [], {}
    for number in range(24):
        name = f"r{number}"
        phases[name] = WHENS[number % len(WHENS)]
        requests.append(
            asks(name, processor, phases[name], written(tokenizer, choice), max_tokens=choice.randrange(8, 40))
        )
    scripts = {each.request_id: (each.selection.named or {})["Writes"]["write"] for each in requests}
    found = {name: tokens_of(steps) for name, steps in run(core, *requests).items()}
    expected, drawn = [], processor == "AfterFilters"
    for name, tokens in found.items():
        of = inside(phases[name], tokens, tokenizer)
        for place, (token, is_inside) in enumerate(zip(tokens, of, strict=True)):
            expected += [(name, place)] if is_inside else []
            if place >= len(scripts[name]):
                # Where rows are drawn, the model may choose the token by itself; `seen` tells these apart.
                assert (token == WANTED) == is_inside or (drawn and not is_inside), (name, place, phases[name])
    seen = WANTING[processor].seen
    if way == "preempted":
        assert core.scheduler.num_preemptions
    if issubclass(WANTING[processor], _Wants):
        assert sorted(seen) == sorted(expected)
    else:
        assert sorted(place for _, place in seen) == sorted(place for _, place in expected)


@pytest.mark.parametrize("way", WAYS)
def test_requests_without_phases_get_the_same_tokens_beside_them(
    engine: Callable[..., EngineCore], tokenizer: Tokenizer, way: str
) -> None:
    def others() -> list[AddRequest]:
        alone = Selection(named={})
        return [request(f"o{n}", [n, 5], selection=alone, max_tokens=20, temperature=0.9, seed=n) for n in range(4)]

    def plain(steps: Mapping[str, list[SequenceStep]]) -> dict[str, list[int]]:
        return {name: tokens_of(each) for name, each in steps.items() if name.startswith("o")}

    choice, when = random.Random(2), {"after": "</t>", "before": "<e>"}
    phased = [asks(name, name, when, written(tokenizer, choice)) for name in WANTING]
    assert plain(run(engine(**WAYS[way]), *others(), *phased)) == plain(run(engine(), *others()))


def test_a_fault_ends_only_requests_in_the_phase(engine: Callable[..., EngineCore], tokenizer: Tokenizer) -> None:
    write = tokenizer.encode("abc", add_special_tokens=False).ids
    before = asks("before", "Fails", {"after_tokens": 50}, write, max_tokens=12)
    within = asks("within", "Fails", {"after_tokens": 6}, write, max_tokens=12)
    steps = run(engine(), before, within)
    assert len(tokens_of(steps["before"])) == 12
    assert sum(len(step.token_ids) for step in steps["within"]) == 6
    assert "Fails failed" in str(steps["within"][-1].error)


def test_a_marker_that_is_taken_back_begins_no_phase(engine: Callable[..., EngineCore], tokenizer: Tokenizer) -> None:
    write = tokenizer.encode("ab</t>", add_special_tokens=False).ids
    kept, taken = (asks(name, "UsersOnly", {"after": "</t>"}, write) for name in ("kept", "taken"))
    named = {**(taken.selection.named or {}), "Rewinds": {"forbids": [write[2:]]}}
    taken.selection = Selection(named=named, when=taken.selection.when)
    steps = run(engine(), kept, taken)
    assert tokens_of(steps["kept"]) == [*write, *[WANTED] * (24 - len(write))]
    assert len(tokens_of(steps["taken"])) == 24
    assert WANTED not in tokens_of(steps["taken"])


def test_a_shadow_is_tried_in_its_phase_only(engine: Callable[..., EngineCore], tokenizer: Tokenizer) -> None:
    write = tokenizer.encode("ab</t>", add_special_tokens=False).ids
    steps = run(engine(), asks("r", "EveryRow", {"after": "</t>"}, write, shadow=True))["r"]
    tokens = tokens_of(steps)
    shadows = [each for step in steps for each in step.shadows or [{}] * len(step.token_ids)]
    of = inside({"after": "</t>"}, tokens, tokenizer)
    assert [shadow.get("EveryRow") == WANTED for shadow in shadows] == of
    assert WANTED not in tokens
    assert True in of


def test_a_trace_shows_the_processor_in_its_phase_only(engine: Callable[..., EngineCore], tokenizer: Tokenizer) -> None:
    write = tokenizer.encode("ab</t>", add_special_tokens=False).ids
    asked = asks("r", "UsersOnly", {"after": "</t>"}, write, logits_processors_trace=TraceParams(max_tokens=24))
    steps = run(engine(), asked)["r"]
    traces = [stages for step in steps for stages in step.trace or []]
    shown = [any(stage.name == "UsersOnly" for stage in stages) for stages in traces]
    assert shown == inside({"after": "</t>"}, tokens_of(steps), tokenizer)
