"""Drafts of the tokens that processors force: right ones, at no cost to the output."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from support.drafters import KnowsMost
from support.processors import YourLogitsProcessor
from support.sequences import chain_of, request, tiny_engine
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import ChainAbortedError, LogitsProcessor, Selection
from fastdeploy_lp.messages import AddRequest, TokenLogprobs
from fastdeploy_lp.request.phase import NO_PARTS, phase_of
from fastdeploy_lp.stats import OK
from fastdeploy_lp.worker.engine_core import EngineCore

KNOWN = "support.drafters:KnowsMost"
EOS, THINK, END = 0, [[2]], [[3, 4, 5]]
# Tokens that end a sequence; so many that some are soon the most likely one.
STOPS = list(range(100, 300))
# By noun of the builtin, arguments with which it forces several tokens of most requests.
FORCING: dict[str, list[dict[str, Any]]] = {
    "ForcedSequence": [{"forced_sequence": [20, 21, 22, 23]}, {"forced_sequence": [31, 32]}],
    "ForceLastPhrase": [{"last_phrase": [40, 41, 42]}],
    "LowConfidenceFallback": [
        {"fallback_phrase": [50, 51, 52], "fallback_min_p": 1.0, "fallback_tolerate": 2},
        {"fallback_phrase": [53, 54, 55], "fallback_min_p": 0.5},
    ],
    "TriggerPhrase": [
        {"trigger_phrase": [60, 61, 62], "trigger_on": [[each] for each in range(8, 512)], "trigger_after": True},
        {"trigger_phrase": [63, 64, 65, 66], "trigger_after_seconds": 0.0},
    ],
    "MultipleChoice": [{"choices": [[[70, 71, 72]], [[70, 71, 73, 74, 75]], [[76]]]}],
    "ThinkingBudget": [
        {"thinking_budget": budget, "think_start": THINK, "think_end": END, "think_stop_sentence": sentence}
        for budget, sentence in ((0, []), (3, [80, 81, 82, 83]), (6, [84]))
    ],
}
CHAIN = [f"{noun}LogitsProcessor" for noun in (*FORCING, "MaxTime")]


def engine(method: str | tuple[str, ...] | None, processors: Sequence[Any] = CHAIN, **config: Any) -> EngineCore:
    speculation = None if method is None else Speculation(method, num_speculative_tokens=5, adaptive=False)
    return tiny_engine(processors, speculation=speculation, eos_token_ids=(EOS,), **config)


@dataclass
class Ended:
    """What became of a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: Any = None


def run(core: EngineCore, requests: Sequence[AddRequest], before_step: Any = None) -> dict[str, Ended]:
    found = {made.request_id: Ended() for made in requests}
    for made in requests:
        core.add(made)
    core.finish_preparing()
    while core.has_work:
        if before_step is not None:
            before_step()
        for step in core.step().steps:
            ended = found[step.request_id]
            ended.tokens += step.token_ids
            ended.logprobs += step.logprobs or []
            ended.reason = step.error, step.finish_reason, step.stop_reason
    return found


def counts(core: EngineCore, kind: str = "forced") -> tuple[int, int]:
    """Verified and accepted tokens of this kind."""
    stats = [each for each in core.load().scheduler_stats.drafts if each.kind == kind]
    return sum(each.tokens for each in stats), sum(each.accepted for each in stats)


def drawn(count: int, nouns: Sequence[str] = tuple(FORCING), seed: int = 0) -> list[AddRequest]:
    """Requests that use one or two builtins; every third has the prompt of the one before it, as with n = 2."""
    rng, made, prompt = random.Random(seed), list[AddRequest](), list[int]()
    for index in range(count):
        if index % 3 != 2:
            prompt = [*(rng.randrange(6, 512) for _ in range(rng.choice([0, 1, 6, 20]))), 2]
        first = rng.choice(nouns)
        args = dict(rng.choice(FORCING[first]))
        if first != "MultipleChoice" and rng.random() < 0.3:
            other = rng.choice([noun for noun in FORCING if noun != "MultipleChoice"])
            args |= rng.choice(FORCING[other])
        if rng.random() < 0.1:
            args["max_time"] = 0.0
        sampling: dict[str, Any] = {"temperature": 1.0, "seed": index} if rng.random() < 0.5 else {}
        if rng.random() < 0.3:
            sampling |= {"logprobs": rng.randrange(3), "repetition_penalty": 1.3}
        if "last_phrase" in args or rng.random() < 0.2:
            sampling["stop_token_ids"] = STOPS
        if rng.random() < 0.3:
            sampling["min_tokens"] = 6
        most = rng.randrange(sampling.get("min_tokens", 1), 24)
        made.append(request(f"r{index}", prompt, max_tokens=most, logits_processors_args=args, **sampling))
    return made


@pytest.fixture(scope="module")
def plain() -> dict[str, Ended]:
    return run(engine(None), drawn(60))


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("forced", {}),
        ("forced", {"num_blocks": 30, "enable_prefix_caching": False}),
        ("forced", {"max_num_batched_tokens": 13, "max_num_seqs": 3}),
        ("auto", {"num_blocks": 20, "enable_prefix_caching": False}),
    ],
    ids=str,
)
def test_random_requests_end_as_without_drafts(plain: dict[str, Ended], method: str, config: dict[str, Any]) -> None:
    core = engine(method, **config)
    assert run(core, drawn(60)) == plain
    assert counts(core)[1] > 0
    assert (core.scheduler.num_preemptions > 0) == ("num_blocks" in config)


def test_the_requests_are_of_every_kind(plain: dict[str, Ended]) -> None:
    assert {type(ended.reason[2]) for ended in plain.values()} == {int, type(None)}
    assert {ended.reason[1] for ended in plain.values()} >= {"stop", "length"}
    # An answer that is complete before `min_tokens` has nothing left.
    assert any(ended.reason[0] for ended in plain.values())
    assert any(ended.logprobs for ended in plain.values())


@pytest.mark.parametrize("noun", FORCING)
def test_all_drafts_of_a_builtin_are_right(noun: str) -> None:
    alone = [
        request(f"r{index}", [index + 6, 9, 2], max_tokens=20, stop_token_ids=STOPS, logits_processors_args=args)
        for index, args in enumerate(FORCING[noun] * 4)
    ]
    core = engine("forced")
    assert run(core, alone) == run(engine(None), alone)
    verified, accepted = counts(core)
    assert accepted == verified > 0


def test_a_phrase_is_drafted_after_steps_that_had_none_to_draft(tmp_path: Path) -> None:
    fd_config = tiny_fd_config(speculation=Speculation("forced", 5, adaptive=False), eos_token_ids=(EOS,))
    # Phases need the bytes of tokens.
    of_files = replace(fd_config.model_config, directory=str(write_tiny_checkpoint(tmp_path)))
    fd_config = replace(fd_config, model_config=of_files)
    core = EngineCore(fd_config, chain_of(CHAIN, fd_config))
    name, args = "TriggerPhraseLogitsProcessor", {"trigger_phrase": [63, 64, 65, 66], "trigger_after_seconds": 0.0}
    run(core, [request("plain", [6, 9, 2], max_tokens=8)])
    assert counts(core) == (0, 0)
    run(core, [request("at once", [6, 9, 2], max_tokens=8, logits_processors_args=args)])
    before = counts(core)[1]
    assert before > 0
    later = request("later", [6, 9, 2], max_tokens=16)
    later.selection = Selection(named={name: args}, when={name: phase_of({"after_tokens": 6}, "when", NO_PARTS)})
    tokens = run(core, [later])["later"].tokens
    assert [63, 64, 65, 66] in [tokens[place : place + 4] for place in range(6, 13)]
    assert counts(core)[1] > before


def test_an_answer_is_what_follows_and_asking_changes_nothing(plain: dict[str, Ended]) -> None:
    core = engine(None)
    said: list[tuple[str, int, list[int]]] = []

    def ask() -> None:
        slots = core.runner.share_inputs
        for slot, name in enumerate(slots["req_ids"]):
            output = slots["output_token_ids"][slot]
            if name:
                said.append((name, len(output), core.runner.chain.forced.after(slot, output, 64)))

    assert run(core, drawn(60), ask) == plain
    # Of two processors that force tokens, the last one counts, which may end its phrase first or begin it later.
    single = {each.request_id for each in drawn(60) if len(using(each)) == 1}
    for name, place, tokens in said:
        if name in single:
            assert plain[name].tokens[place : place + len(tokens)] == tokens[: len(plain[name].tokens) - place]
    assert sum(len(tokens) for _, _, tokens in said) > 100


def using(made: AddRequest) -> list[str]:
    """The builtins that a request uses."""
    args = made.selection.flat
    return [*(noun for noun, given in FORCING.items() if any(each.items() <= args.items() for each in given))]


@pytest.mark.parametrize(
    ("args", "output", "expected"),
    [
        ({"forced_sequence": [20, 21, 22]}, [20], [21, 22]),
        ({"forced_sequence": [20, 21, 22]}, [20, 21, 22], []),
        # The prompt opens reasoning. Known as soon as the last token of the budget is there, not one step later.
        ({"thinking_budget": 2, "think_stop_sentence": []}, [9], []),
        ({"thinking_budget": 2, "think_stop_sentence": []}, [9, 9], [3, 4, 5]),
        ({"thinking_budget": 3, "think_stop_sentence": [8]}, [9, 9], [8, 3, 4, 5]),
        ({"thinking_budget": 3, "think_stop_sentence": [8]}, [9, 9, 8, 3], [4, 5]),
        # The model has begun the end marker: it is completed.
        ({"thinking_budget": 2, "think_stop_sentence": []}, [9, 3], [4, 5]),
        ({"thinking_budget": 2, "think_stop_sentence": []}, [3, 4, 5], []),
        ({"choices": [[[6, 7, 8]], [[6, 9, 8, 8]]]}, [6], []),
        ({"choices": [[[6, 7, 8]], [[6, 9, 8, 8]]]}, [6, 9], [8, 8]),
        ({"choices": [[[6, 7]], [[6, 7, 8]]]}, [6], [7]),
        ({"trigger_phrase": [20, 21], "trigger_on": [[7, 8]], "trigger_after": True}, [7], []),
        ({"trigger_phrase": [20, 21], "trigger_on": [[7, 8]], "trigger_after": True}, [7, 8], [20, 21]),
        ({"trigger_phrase": [20, 21], "trigger_on": [[7, 8]], "trigger_after": True}, [7, 8, 20], [21]),
        ({"max_time": 0.0}, [9], []),
    ],
)
def test_an_answer_follows_the_newest_token(args: dict[str, Any], output: list[int], expected: list[int]) -> None:
    """Which the last `update_state` has not seen."""
    markers = {"think_start": THINK, "think_end": END} if "thinking_budget" in args else {}
    core = engine(None)
    core.add(request("r", [2], max_tokens=20, logits_processors_args=args | markers))
    core.scheduler.schedule()
    slots, chain = core.runner.share_inputs, core.runner.chain
    live = slots["output_token_ids"][0]
    assert chain.forced.after(0, live, 9) == []
    for token in output:
        slots.set_active([0])
        chain.update_state(slots)
        slots.append_tokens(np.array([0]), np.array([token]))
        list.append(live, token)
    assert chain.forced.after(0, live, 9) == expected
    assert chain.forced.after(0, live, 1) == expected[:1]


class Watched(LogitsProcessor):
    """Records of each question the tokens that the last `update_state` saw, and those of the question."""

    asked: ClassVar[list[tuple[tuple[str, int], tuple[str, int]]]] = []

    def __init__(self, fd_config: FDConfig) -> None:
        self._seen: dict[int, tuple[str, int]] = {}
        self._names: Sequence[str] = ()

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._names = share_inputs["req_ids"]
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            self._seen[slot] = self._names[slot], len(share_inputs["output_token_ids"][slot])

    def apply(self, logits: Any) -> Any:
        return logits

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        self.asked.append((self._seen[slot], (self._names[slot], len(output))))
        return ()


@pytest.mark.parametrize("method", ["forced", ("forced", KNOWN)], ids=str)
@pytest.mark.parametrize("config", [{}, {"num_blocks": 20}, {"max_num_batched_tokens": 13, "max_num_seqs": 3}], ids=str)
def test_exactly_one_token_is_newer_than_the_last_update(
    monkeypatch: pytest.MonkeyPatch, plain: dict[str, Ended], method: Any, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(Watched, "asked", [])
    monkeypatch.setattr(KnowsMost, "outputs", {name: ended.tokens for name, ended in plain.items()})
    run(engine(method, [*CHAIN, Watched], **config), drawn(30))
    assert len(Watched.asked) > 50
    assert [asked for asked in Watched.asked if asked[1] != (asked[0][0], asked[0][1] + 1)] == []


class Says(LogitsProcessor):
    """Forces the tokens of `says`, announces the ones of `announces`, and fails when asked if `fails`."""

    only_with_args: ClassVar[bool] = False
    says: ClassVar[list[int]] = [20, 21, 22, 23]
    announces: ClassVar[Any] = says

    def __init__(self, fd_config: FDConfig) -> None:
        self._rows: list[tuple[int, int]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args, outputs = share_inputs["logits_processors_args"], share_inputs["output_token_ids"]
        slots = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        self._rows = [
            (row, self.says[len(outputs[slot])])
            for row, slot in enumerate(slots)
            if args[slot].get("phrase") and len(outputs[slot]) < len(self.says)
        ]

    def apply(self, logits: Any) -> Any:
        for row, token in self._rows:
            logits[row] = -np.inf
            logits[row, token] = 0.0
        return logits

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        if isinstance(self.announces, BaseException):
            raise self.announces
        return self.announces[len(output) :] if isinstance(self.announces, list) else self.announces


def phrased(count: int = 4) -> list[AddRequest]:
    uses = Selection(named={"Says": {"phrase": True}})
    return [
        request(f"r{index}", [index + 1, 9], max_tokens=9, selection=uses if index % 2 else None)
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("announces", "fault"),
    [
        (Says.says, None),
        ([9, 9, 9, 9], None),
        ((), None),
        (ZeroDivisionError("broken by a test"), "ZeroDivisionError: broken by a test"),
        (SystemExit(3), "SystemExit"),
        (None, "TypeError"),
        ([20, "x"], "TypeError"),
        ([20, 512], "forced_tokens returned 512; token ids are 0 to 511"),
        ([20, -1], "forced_tokens returned -1"),
    ],
    ids=str,
)
def test_a_fault_is_counted_once_and_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, announces: Any, fault: str | None
) -> None:
    policy = StructuredOutputsConfig(max_faults=1)
    expected = run(engine(None, [Says], policy=policy), phrased())
    monkeypatch.setattr(Says, "announces", announces)
    core = engine("forced", [Says], policy=policy)
    assert run(core, phrased()) == expected
    stats = core.runner.chain.stats["Says"]
    assert (stats.faults, stats.state) == (int(fault is not None), OK)
    assert (fault or "") in (stats.last_error or "")
    assert (counts(core)[1] > 0) == (announces is Says.says)


def test_a_fault_stops_the_server_where_the_operator_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Says, "announces", ZeroDivisionError("broken by a test"))
    with pytest.raises(ChainAbortedError, match="Says failed"):
        run(engine("forced", [Says], policy=StructuredOutputsConfig(on_error="abort")), phrased())


@pytest.mark.parametrize(
    ("order", "wanted"), [(("first", "second"), [31, 32, 33]), (("second", "first"), [21, 22, 23])]
)
def test_the_last_processor_that_forces_tokens_counts(order: tuple[str, str], wanted: list[int]) -> None:
    named = {"first": {"forced_sequence": [21, 22, 23]}, "second": {"forced_sequence": [31, 32, 33]}}
    core = engine("forced", [f"{name}=ForcedSequenceLogitsProcessor" for name in named])
    made = request("r", [1, 2], max_tokens=6, selection=Selection(named=named, order=order))
    assert run(core, [made])["r"].tokens[:3] == wanted
    assert counts(core) == (2, 2)


def test_nothing_is_drafted_from_the_end_of_a_sequence_on() -> None:
    made = request(
        "r", [1, 2], max_tokens=20, stop_token_ids=[23], logits_processors_args={"forced_sequence": [21, 22, 23, 24]}
    )
    core = engine("forced")
    assert run(core, [made])["r"].tokens == [21, 22, 23]
    assert counts(core) == (1, 1)


def test_a_slot_without_such_processors_is_not_asked() -> None:
    core = engine("forced", [*CHAIN, YourLogitsProcessor])
    core.add(request("r", [1, 2], logits_processors_args={}))
    core.step()
    assert core.runner.chain.forced._entries == {}


# Every method, and a drafter that knows the answer, or the one that the request has without processors.
HOLDING = [
    *((method, "with", 0.0) for method in ("ngram", "grammar", "layout", "forced", "suffix", "auto")),
    *(
        (method, knows, wrong)
        for method in (KNOWN, (KNOWN, "auto"))
        for knows in ("with", "without")
        for wrong in (0.0, 0.2)
    ),
]


@pytest.fixture(scope="module")
def budgeted() -> tuple[list[AddRequest], list[AddRequest], dict[str, Ended], dict[str, Ended]]:
    """Requests with and without their budget, phrase and minimum, and their answers in steps of one token."""
    requests, free = [], []
    for index, budget in enumerate((0, 1, 2, 3, 5, 8, 9, 13)):
        prompt = [*range(7 + index, 14)] * 2 + [2]
        args = {"thinking_budget": budget, "think_start": THINK, "think_end": END, "think_stop_sentence": None}
        if index % 3 == 1:
            args |= {"think_stop_sentence": [80], "last_phrase": [40, 41, 42]}
        sampling: dict[str, Any] = {"temperature": 0.8, "seed": index} if index % 2 else {}
        fields = {"max_tokens": 30, "min_tokens": 18, "stop_token_ids": STOPS, **sampling}
        requests.append(request(f"r{index}", prompt, logits_processors_args=args, **fields))
        free.append(request(f"r{index}", prompt, max_tokens=30, **sampling))
    return requests, free, run(engine(None), requests), run(engine(None), free)


@pytest.mark.parametrize(("method", "knows", "wrong"), HOLDING, ids=str)
def test_budgets_phrases_and_minima_hold_exactly(
    monkeypatch: pytest.MonkeyPatch, budgeted: Any, method: Any, knows: str, wrong: float
) -> None:
    """Also for drafts that pass the end of the budget, the case of vLLM's issue 54906."""
    requests, _, expected, free = budgeted
    known = expected if knows == "with" else free
    monkeypatch.setattr(KnowsMost, "outputs", {name: ended.tokens for name, ended in known.items()})
    monkeypatch.setattr(KnowsMost, "wrong", wrong)
    core = engine(method)
    found = run(core, requests)
    assert found == expected
    for made in requests:
        args, tokens = made.selection.flat, found[made.request_id].tokens
        sentence = args["think_stop_sentence"] or []
        budget = max(args["thinking_budget"], len(sentence))
        assert tokens[budget - len(sentence) : budget + 3] == [*sentence, *END[0]]
        assert len(tokens) >= 18
        assert not set(tokens[:17]) & set(STOPS)


def test_the_budgets_would_not_hold_by_chance(budgeted: Any) -> None:
    _, _, expected, free = budgeted
    assert all(3 not in ended.tokens for ended in free.values())
    assert any(ended.reason[1] == "stop" for ended in expected.values())
    assert any(ended.tokens[-1] in STOPS and 42 in ended.tokens for ended in expected.values())


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    config = {"method": "forced", "adaptive": False}
    with LLM(model, logits_processors=CHAIN, speculative_config=config, max_num_seqs=4) as running:
        yield running


def test_texts_of_several_completions_are_the_same_up_to_their_stop_strings(llm: LLM) -> None:
    rng = random.Random(5)
    args = [
        {"forced_sequence": "The quick brown fox"},
        {"thinking_budget": 3, "think_start": "<s>", "think_end": " over the dog", "think_stop_sentence": " jumps"},
        {"choices": ["the lazy dog sleeps", "the lazy animals look", "fox"]},
        {"fallback_phrase": " and the other dog", "fallback_min_p": 1.0},
    ]
    prompts, params = [], []
    for index in range(16):
        prompts.append([*(rng.randrange(3, 512) for _ in range(rng.randrange(12))), 1])
        fields = {"n": 2, "seed": index, "max_tokens": 24, "stop": rng.sample(["ick", "laz", "r th", "do", "zz"], 2)}
        params.append({**fields, "min_tokens": 3 * (index % 2), "logits_processors_args": args[index % 4]})

    def completions(speculative: bool) -> tuple[list[Any], int]:
        outputs = llm.generate(prompts, [SamplingParams(**each, speculative=speculative) for each in params])
        found = [
            [(each.text, each.token_ids, each.finish_reason, each.stop_reason) for each in output.completions]
            for output in outputs
        ]
        return found, sum(output.drafted.accepted for output in outputs)

    (plain, none), (drafted, accepted) = completions(False), completions(True)
    assert drafted == plain
    assert accepted > none == 0
    assert {each[2] for choices in plain for each in choices} == {"stop", "length"}
    assert any(isinstance(each[3], str) for choices in plain for each in choices)
