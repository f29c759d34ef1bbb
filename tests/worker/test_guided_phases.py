"""Forms in one phase of an output: nothing but the form there, anything else elsewhere, whatever the tokens are."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddle import Tensor
from support.grammars import TINY_EOS
from support.sequences import chain_of, request
from support.tiny import tiny_fd_config, write_tiny_checkpoint
from tokenizers import Tokenizer

from fastdeploy_lp.config import ChatConfig, FDConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.messages import AddRequest, SequenceStep
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.phase import Parts, phase_of
from fastdeploy_lp.worker.engine_core import EngineCore

FORM = r"\{[0-9]{2}\}"
PARTS = MessageParsers(ChatConfig(reasoning_parser="qwen3", enable_auto_tool_choice=True), "<tool_call>").parts
UNMARKED = MessageParsers(ChatConfig(reasoning_parser="deepseek_r1"), None).parts


class Writes(LogitsProcessor):
    """Prefers the tokens `write`, and after them whatever the model does."""

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._wanted: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        steps, args = share_inputs["step_idx"], share_inputs["logits_processors_args"]
        self._wanted = [_written(args[slot], int(steps[slot, 0])) for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._wanted):
            if token is not None:
                logits[row, token] = 1e4
        return logits


def _written(args: Mapping[str, Any], step: int) -> int | None:
    write = args.get("write") or []
    return write[step] if step < len(write) else None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


Make = Callable[..., EngineCore]


@pytest.fixture
def engine(directory: Path) -> Make:
    def make(**config: Any) -> EngineCore:
        fd_config = tiny_fd_config(**{"eos_token_ids": (TINY_EOS,), "max_model_len": 96, **config})
        fd_config = replace(fd_config, model_config=replace(fd_config.model_config, directory=str(directory)))
        return EngineCore(fd_config, chain_of([Writes], fd_config))

    return make


def phased(name: str, when: dict[str, Any], write: list[int], *, parts: Parts = PARTS, **params: Any) -> AddRequest:
    grammar = grammar_of(GuidedDecodingParams(regex=FORM)).within(phase_of(when, "when", parts))
    args = {"write": write}
    made = request(name, [1, 2, 3], logits_processors_args=args, **{"max_tokens": 80, "temperature": 1.5, **params})
    made.grammar, made.phase = grammar.text, grammar.phase
    return made


def run(core: EngineCore, *requests: AddRequest) -> dict[str, list[SequenceStep]]:
    for each in requests:
        core.add(each)
    steps: dict[str, list[SequenceStep]] = {}
    while core.has_work:
        for step in core.step().steps:
            steps.setdefault(step.request_id, []).append(step)
    return steps


def text_of(tokenizer: Tokenizer, steps: list[SequenceStep]) -> str:
    assert [step.error for step in steps] == [None] * len(steps)
    tokens = [token for step in steps for token in step.token_ids if token != TINY_EOS]
    return str(tokenizer.decode(tokens))


def spelled(tokenizer: Tokenizer, text: str, choice: random.Random) -> list[int]:
    """A random tokenization: pieces of the text, each as the tokenizer writes it."""
    found: list[int] = []
    while text:
        size = choice.randrange(1, len(text) + 1)
        found += tokenizer.encode(text[:size], add_special_tokens=False).ids
        text = text[size:]
    return found


@pytest.mark.parametrize("way", ["plain", "preempted", "speculative"])
def test_the_form_begins_after_its_marker(engine: Make, tokenizer: Tokenizer, way: str) -> None:
    """In any tokenization of the marker, for many sequences at once."""
    config: dict[str, Any] = {
        "plain": {},
        "preempted": {"num_blocks": 32},
        "speculative": {"speculation": Speculation(("ngram", "grammar"), num_speculative_tokens=4, adaptive=False)},
    }[way]
    core, choice = engine(**config), random.Random(3)
    cases = {
        "after": ({"after": "</t>"}, "</t>", PARTS),
        "unmarked": ({"in": "answer"}, "</think>", UNMARKED),
        "marked": ({"in": "answer"}, "</think>", PARTS),
    }
    requests = []
    for number in range(36):
        kind = choice.choice(sorted(cases))
        when, marker, parts = cases[kind]
        thought = "<think>" if kind == "marked" else ""
        write = spelled(tokenizer, thought + "ab " * choice.randrange(12) + marker, choice)
        requests.append(phased(f"{kind}-{number}", when, write, parts=parts, seed=number))
    for name, steps in run(core, *requests).items():
        marker = "</t>" if name.startswith("after") else "</think>"
        text = text_of(tokenizer, steps)
        _, _, answer = text.partition(marker)
        assert re.fullmatch(FORM, answer), (name, text)
        assert steps[-1].finish_reason == "stop"
    if way == "preempted":
        assert core.scheduler.num_preemptions


def test_an_output_cannot_end_before_its_form(engine: Make, tokenizer: Tokenizer) -> None:
    ends = phased("ends", {"after": "</t>"}, [TINY_EOS] * 3 + spelled(tokenizer, "</t>", random.Random(0)))
    cut = phased("cut", {"after": "</t>"}, [], max_tokens=10)
    steps = run(engine(), ends, cut)
    assert re.fullmatch(f"(.|\n)*</t>{FORM}", text_of(tokenizer, steps["ends"]))
    assert steps["cut"][-1].finish_reason == "length"


def test_an_answer_without_reasoning_has_the_form_from_its_first_token(engine: Make, tokenizer: Tokenizer) -> None:
    begins = tokenizer.encode("{", add_special_tokens=False).ids
    requests = [phased(f"r{n}", {"in": "answer"}, begins, seed=n) for n in range(8)]
    for steps in run(engine(), *requests).values():
        assert re.fullmatch(FORM, text_of(tokenizer, steps))


def test_no_token_holds_the_marker_and_more(engine: Make, tokenizer: Tokenizer) -> None:
    """The marker " d" is the beginning of a token of the vocabulary, which would go on with other text."""
    longer = tokenizer.encode(" dog", add_special_tokens=False).ids
    assert len(longer) == 1
    steps = run(engine(), phased("r", {"after": " d"}, longer * 6 + tokenizer.encode(" d").ids))["r"]
    text = text_of(tokenizer, steps)
    assert re.fullmatch(FORM, text.partition(" d")[2])


def test_a_form_may_begin_after_some_tokens(engine: Make, tokenizer: Tokenizer) -> None:
    requests = [phased(f"r{n}", {"after_tokens": n}, [], seed=n) for n in range(7)]
    for name, steps in run(engine(), *requests).items():
        tokens = [token for step in steps for token in step.token_ids]
        assert re.fullmatch(FORM, str(tokenizer.decode(tokens[int(name[1:]) :])))


def test_a_form_that_ends_at_a_marker_is_followed_by_any_text(engine: Make, tokenizer: Tokenizer) -> None:
    requests = [phased(f"r{n}", {"before": "</f>"}, [], seed=n, max_tokens=40) for n in range(6)]
    texts = [text_of(tokenizer, steps) for steps in run(engine(), *requests).values()]
    for text in texts:
        assert re.fullmatch(rf"(?s){FORM}</f>.*", text)
    assert len({text[-4:] for text in texts}) > 1


def test_every_call_has_the_form(engine: Make, tokenizer: Tokenizer) -> None:
    calls = spelled(tokenizer, "ab<tool_call>", random.Random(5))
    write = calls + [70] * 30 + calls
    requests = [phased(f"r{n}", {"in": "tool_call"}, write, seed=n, max_tokens=90) for n in range(6)]
    for steps in run(engine(max_model_len=128), *requests).values():
        text = text_of(tokenizer, steps)
        _, *bodies = text.split("<tool_call>")
        assert bodies
        for body in bodies[:-1]:
            assert re.match(rf"{FORM}</tool_call>", body)


def test_neighbours_get_the_same_tokens(engine: Make, tokenizer: Tokenizer) -> None:
    def others() -> list[AddRequest]:
        return [request(f"o{n}", [n + 1, 5], max_tokens=30, temperature=0.9, seed=n) for n in range(4)]

    write = spelled(tokenizer, "<think>ab</think>", random.Random(1))
    alone = run(engine(), *others())
    both = run(engine(), *others(), *[phased(f"r{n}", {"in": "answer"}, write, seed=n) for n in range(3)])
    for name, steps in alone.items():
        assert [step.token_ids for step in steps] == [step.token_ids for step in both[name]]


def test_logprobs_are_those_of_the_raw_model_where_nothing_is_ruled_out(engine: Make) -> None:
    steps = run(engine(), phased("r", {"after_tokens": 4}, [], logprobs=2, seed=1))["r"]
    sampled = [step for step in steps if step.token_ids]
    assert sampled
    assert all(step.logprobs and len(step.logprobs) == len(step.token_ids) for step in sampled)
