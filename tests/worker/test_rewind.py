"""Processors that take tokens back: what a step reports, the exact output, and what neighbours notice."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
from support import rewinding
from support.drafters import KnowsMost
from support.sequences import request, tiny_engine

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.chain import recorded_actions
from fastdeploy_lp.messages import AddRequest, PackedLogprobs, StageTrace, TokenLogprobs
from fastdeploy_lp.request.trace import TOOK_BACK, TraceParams
from fastdeploy_lp.worker.engine_core import EngineCore

PROMPT = [5, 9, 2, 7, 11]
TOKENS = 14
DIALECTS = {
    "Rewinds": "support.rewinding:Rewinds",
    "VllmRewinds": "support.rewinding:VllmRewinds",
    "SlotKeyedRewinds": "support.rewinding:SlotKeyedRewinds",
    "RequestRewinds": "support.rewinding:RequestRewinds",
    "PluginRewinds": "PluginRewinds=support.rewinding:PLUGIN",
    "TorchRewinds": "support.rewinding:TorchRewinds",
}
UNLIMITED = StructuredOutputsConfig(max_faults=0)


@dataclass
class Seen:
    """What the steps of one request said."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    values: list[tuple[int, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PackedLogprobs] = field(default_factory=list)
    traced: list[list[StageTrace]] = field(default_factory=list)
    steps: int = 0


def run(engine: EngineCore, requests: list[AddRequest], preempt: float = 0.0) -> dict[str, Seen]:
    seen = {each.request_id: Seen() for each in requests}
    rng = random.Random(3)
    for each in requests:
        engine.add(each)
    engine.finish_preparing()
    steps = 0
    while engine.has_work:
        steps += 1
        for step in engine.step().steps:
            found = seen[step.request_id]
            assert found.finish_reason is None
            assert found.error is None
            found.values += [(len(found.tokens), json.loads(value)) for _, value in step.emitted or ()]
            found.tokens += step.token_ids
            found.logprobs += step.logprobs or []
            found.traced += step.trace or []
            found.prompt_logprobs += [step.prompt_logprobs] if step.prompt_logprobs else []
            found.finish_reason, found.error = step.finish_reason, step.error
            found.steps = steps
        if rng.random() < preempt and engine.scheduler.num_running > 1:
            engine.scheduler.preempt()
    assert engine.blocks.num_used == 0
    return seen


def asks(name: str, request_id: str = "r", prompt: list[int] = PROMPT, args: Any = None, **params: Any) -> AddRequest:
    selection = Selection(named={name: args}) if args else Selection()
    return request(request_id, prompt, selection=selection, **{"max_tokens": TOKENS, **params})


@pytest.fixture(scope="module")
def banning() -> EngineCore:
    return tiny_engine([rewinding.BanAt])


@pytest.fixture(scope="module")
def engine() -> EngineCore:
    wrong = ["support.rewinding:RewindsWrongly", "support.rewinding:RewindsUndeclared"]
    return tiny_engine([*DIALECTS.values(), *wrong, "support.acting:Acts"], policy=UNLIMITED)


@pytest.fixture(scope="module")
def plain(banning: EngineCore) -> list[int]:
    return run(banning, [asks("", max_tokens=TOKENS)])["r"].tokens


def expected(banning: EngineCore, forbids: list[list[int]], prompt: list[int] = PROMPT, **params: Any) -> list[int]:
    def decode(bans: dict[int, list[int]]) -> list[int]:
        return run(banning, [asks("BanAt", prompt=prompt, args={"ban_at": bans}, **params)])["r"].tokens

    return rewinding.without(forbids, decode)


def met(banning: EngineCore, **params: Any) -> list[list[int]]:
    """Sequences that are met one after the other, at the beginning and the end of the output too."""
    forbids: list[list[int]] = []
    for begin, end in ((0, 1), (2, 4), (2, 3), (5, 9), (9, 12), (TOKENS - 2, TOKENS), (TOKENS - 1, TOKENS)):
        forbids.append(expected(banning, forbids, **params)[begin:end])
    return forbids


@pytest.fixture(scope="module")
def forbids(banning: EngineCore) -> list[list[int]]:
    return met(banning)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_output_is_the_best_one_without_the_sequences(
    engine: EngineCore, banning: EngineCore, plain: list[int], forbids: list[list[int]], name: str
) -> None:
    seen = run(engine, [asks(name, args={"forbids": forbids}, request_id=f"{name}-r")])[f"{name}-r"]
    assert seen.error is None
    assert seen.tokens == expected(banning, forbids)
    assert seen.tokens != plain
    assert seen.finish_reason == "length"
    stats = engine.runner.chain.stats[name]
    assert stats.rewinds >= 7
    assert stats.faults == 0


BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (f"support.hash_bias:{name}", {"hash_bias": [3, 4.0]})
        for name in ("Native", "Vllm", "Mrv2", "RequestTwo")
    },
    "Plugin": ("Plugin=support.hash_bias:PLUGIN", {"hash_bias": [3, 4.0]}),
    "HuggingFace": ("support.hash_bias_torch:HuggingFace", {"hash_bias": [3, 4.0]}),
    "NoRepeatNGramLogitsProcessor": ("NoRepeatNGramLogitsProcessor", {"no_repeat_ngram_size": 2}),
    "ThinkingBudgetLogitsProcessor": (
        "ThinkingBudgetLogitsProcessor",
        {"thinking_budget": 4, "think_start": [[7, 11]], "think_end": [[8, 9]]},
    ),
}


def test_other_processors_follow() -> None:
    both = tiny_engine([*(spec for spec, _ in BESIDE.values()), rewinding.Rewinds, rewinding.BanAt])
    # As in a server, no two requests have the same id.
    serials = count()

    def one(name: str, args: dict[str, Any], other: dict[str, Any]) -> Seen:
        selection, serial = Selection(named={name: args, **other}), f"r{next(serials)}"
        return run(both, [request(serial, PROMPT, max_tokens=TOKENS, selection=selection)])[serial]

    for name, (_, args) in BESIDE.items():

        def decode(bans: dict[int, list[int]], name: str = name, args: dict[str, Any] = args) -> list[int]:
            return one(name, args, {"BanAt": {"ban_at": bans}}).tokens

        tokens, forbids = decode({}), []
        for place in (1, TOKENS - 2):
            forbids.append(tokens[place : place + 2])
            tokens = rewinding.without(forbids, decode)
        seen = one(name, args, {"Rewinds": {"forbids": forbids}})
        assert (seen.error, seen.tokens) == (None, tokens), name


def test_a_sequence_that_ends_with_the_last_token_is_taken_back(
    engine: EngineCore, banning: EngineCore, plain: list[int]
) -> None:
    forbids = [plain[-4:]]
    seen = run(engine, [asks("Rewinds", args={"forbids": forbids})])["r"]
    assert seen.tokens == expected(banning, forbids)
    assert (seen.tokens[:-4], len(seen.tokens)) == (plain[:-4], TOKENS)


def test_a_sequence_that_ends_with_a_stop_token_is_taken_back(
    engine: EngineCore, banning: EngineCore, plain: list[int]
) -> None:
    stop = {"stop_token_ids": [plain[3]]}
    forbids = [plain[2:4]]
    seen = run(engine, [asks("Rewinds", args={"forbids": forbids}, **stop)])["r"]
    assert seen.tokens == expected(banning, forbids, **stop)
    calm = run(engine, [asks("Rewinds", "calm", args={"forbids": [[511, 511]]}, **stop)])["calm"]
    assert (calm.tokens, calm.finish_reason) == (plain[:4], "stop")


def test_a_full_context_is_taken_back_too(engine: EngineCore, banning: EngineCore) -> None:
    full: dict[str, Any] = {"max_tokens": None}
    whole = run(banning, [asks("", **full)])["r"].tokens
    assert len(whole) + len(PROMPT) == 64
    forbids = [whole[-3:], whole[-9:-7]]
    seen = run(engine, [asks("Rewinds", args={"forbids": forbids}, **full)])["r"]
    assert seen.tokens == expected(banning, forbids, **full)


def test_details_are_those_of_the_tokens_that_stay(
    engine: EngineCore, banning: EngineCore, forbids: list[list[int]]
) -> None:
    wanted: dict[str, Any] = {"logprobs": 2, "prompt_logprobs": 1, "logits_processors_trace": TraceParams()}
    seen = run(engine, [asks("Rewinds", args={"forbids": forbids, "emits": True}, **wanted)])["r"]
    tokens = seen.tokens
    assert tokens == expected(banning, forbids)
    again = run(banning, [request("again", PROMPT + tokens, max_tokens=1, prompt_logprobs=2)])["again"]
    (packed,) = again.prompt_logprobs
    numbers = np.frombuffer(packed.logprobs, "<f4").reshape(-1, packed.width)[len(PROMPT) - 1 :]
    assert np.array_equal(numbers, np.array([each.logprobs for each in seen.logprobs], np.float32))
    assert len(seen.logprobs) == len(seen.traced) == TOKENS
    assert [each.token_ids[0] for each in seen.logprobs] == tokens
    (prompt,) = seen.prompt_logprobs
    assert len(prompt.ranks) == 4 * (len(PROMPT) - 1)
    assert seen.values == [(at, at) for at in range(TOKENS)]


def test_a_trace_has_what_was_taken_back_to_its_place(engine: EngineCore, plain: list[int]) -> None:
    first, pair = plain[0], plain[3:5]

    def traced(forbids: list[list[int]]) -> list[list[tuple[str, list[int] | None]]]:
        made = asks("Rewinds", args={"forbids": forbids}, logits_processors_trace=TraceParams())
        stages = run(engine, [made])["r"].traced
        return [[(each.name, each.taken_back) for each in here if each.status == TOOK_BACK] for here in stages]

    assert traced([pair])[3][0] == ("Rewinds", pair)
    assert not any(traced([])[place] for place in range(TOKENS))
    # A second rewind to the same place, once the first one's best other way is forbidden, too.
    second = run(engine, [asks("Rewinds", args={"forbids": [[first]]})])["r"].tokens[0]
    assert traced([[first], [second]])[0] == [("Rewinds", [first]), ("Rewinds", [second])]


def test_the_first_token_is_taken_back_with_the_prompts_logprobs_kept(engine: EngineCore, plain: list[int]) -> None:
    made = asks("Rewinds", args={"forbids": [plain[:1]]}, prompt_logprobs=1, max_tokens=1)
    seen = run(engine, [made])["r"]
    assert len(seen.prompt_logprobs) == 1
    assert seen.tokens != plain[:1]


def test_penalties_and_minimum_follow(engine: EngineCore, banning: EngineCore) -> None:
    penal: dict[str, Any] = {"repetition_penalty": 1.4, "frequency_penalty": 0.8, "min_tokens": 6}
    whole = run(banning, [asks("", **penal)])["r"].tokens
    penal["stop_token_ids"] = [whole[8]]
    forbids = met(banning, **penal)[:5]
    seen = run(engine, [asks("Rewinds", args={"forbids": forbids}, **penal)])["r"]
    assert seen.tokens == expected(banning, forbids, **penal)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"at": 2, "count": 3}, "the output has 2, and the prompt cannot be taken back"),
        ({"at": 6, "count": 5}, "max_rewind of RewindsWrongly allows 4"),
        ({"at": 6, "count": 0}, "at least 1"),
        ({"at": 6, "count": "x"}, "TypeError"),
        ({"at": 6, "ban": [512]}, "no token has the id 512"),
        ({"at": 6, "ban": 3}, "TypeError"),
        ({"at": 6, "ban": list(range(512)) * 3, "count": 9}, "allows 4"),
    ],
)
def test_a_wrong_rewind_ends_its_request_alone(
    engine: EngineCore, plain: list[int], args: dict[str, Any], words: str
) -> None:
    seen = run(engine, [asks("RewindsWrongly", args=args), asks("", "other"), asks("RewindsWrongly", "w", args=args)])
    assert words in (seen["r"].error or "")
    assert seen["r"].tokens == plain[: max(0, args["at"] - rewinding.LONGEST)]
    assert seen["w"].error == seen["r"].error
    assert seen["other"].tokens == plain


def test_the_number_of_rewinds_is_limited(
    engine: EngineCore, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each rewind and the steps after it cost time: as many as the limit allows take seconds.
    monkeypatch.setattr(recorded_actions, "MAX_REWINDS", 50)
    test_a_wrong_rewind_ends_its_request_alone(engine, plain, {"at": 6, "count": 2}, "had 50 rewinds")


def test_a_class_without_max_rewind_may_not(engine: EngineCore, plain: list[int]) -> None:
    seen = run(engine, [asks("RewindsUndeclared", args={"at": 3}), asks("", "other")])
    assert "RewindsUndeclared declares no max_rewind" in (seen["r"].error or "")
    assert seen["r"].tokens == plain[:3]
    assert seen["other"].tokens == plain


def test_tokens_that_were_sent_stay(engine: EngineCore, plain: list[int]) -> None:
    class RewindsTwice(rewinding.RewindsWrongly):
        def update_state(self, share_inputs: Any) -> None:
            for slot in share_inputs["using_slots"]:
                output, args = share_inputs["output_token_ids"][slot], share_inputs["logits_processors_args"][slot]
                if len(output) == args.at or left:
                    left.append(self.actions.rewindable(slot))
                    self.actions.rewind(slot, 3)

    left: list[int] = []
    seen = run(tiny_engine([RewindsTwice]), [asks("RewindsTwice", args={"at": 8})])["r"]
    assert "the client may have all but 1 since the last rewind" in (seen.error or "")
    assert (seen.tokens, left) == (plain[:4], [4, 1])


def test_a_finish_waits_for_a_rewind(engine: EngineCore, plain: list[int], banning: EngineCore) -> None:
    both = {"Rewinds": {"forbids": [plain[3:5]]}, "Acts": {"finish_at": 5, "emit_at": [3, 5]}}
    made = request("r", PROMPT, max_tokens=TOKENS, selection=Selection(named=both))
    seen = run(engine, [made])["r"]
    assert seen.finish_reason == "stop"
    assert seen.tokens == expected(banning, [plain[3:5]])[:5]
    assert seen.values == [(3, 3), (5, 5)]


def test_draws_after_a_rewind_are_new_ones(engine: EngineCore) -> None:
    sampling: dict[str, Any] = {"temperature": 1.5, "seed": 11}
    whole = run(engine, [asks("", **sampling)])["r"].tokens
    forbids = [whole[6:8]]
    seen = run(engine, [asks("Rewinds", args={"forbids": forbids}, **sampling)])["r"]
    assert seen.tokens[:6] == whole[:6]
    # With the numbers of the first pass, tokens after the place would often be the same again.
    assert seen.tokens[7:] != whole[7:]


@dataclass
class Neighbours:
    """Random requests, half of which are rewound, and the answer of each one without others."""

    requests: list[AddRequest] = field(default_factory=list)
    alone: dict[str, Seen] = field(default_factory=dict)
    rewound: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def neighbours(banning: EngineCore) -> Neighbours:
    rng, found = random.Random(7), Neighbours()
    prompts = [[rng.randrange(512) for _ in range(rng.choice([1, 4, 13]))] for _ in range(12)]
    single = tiny_engine(list(DIALECTS.values()))
    for index in range(40):
        name, prompt = f"r{index}", prompts[index % 12]
        sampling: dict[str, Any] = {"max_tokens": rng.randrange(2, 14), "logprobs": 2 if index % 4 == 0 else None}
        if index % 3 == 0:
            sampling |= {"temperature": 0.9, "seed": index}
        calm = run(banning, [request(name, prompt, **sampling)])[name]
        if rng.random() < 0.5:
            at = rng.randrange(len(calm.tokens))
            forbids = [calm.tokens[at : at + rng.randint(1, rewinding.LONGEST)], calm.tokens[-1:]]
            selection = Selection(named={rng.choice(list(DIALECTS)): {"forbids": forbids}})
            found.rewound.add(name)
            found.requests.append(request(name, prompt, selection=selection, **sampling))
            found.alone[name] = mine = run(single, [found.requests[-1]])[name]
            assert all(back is None for back in backs(mine.tokens, forbids))
            if "temperature" not in sampling:
                assert mine.tokens == expected(banning, forbids, prompt, max_tokens=sampling["max_tokens"])
        else:
            found.requests.append(request(name, prompt, **sampling))
            found.alone[name] = calm
    return found


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"num_blocks": 26}, None),
        ({"max_num_seqs": 3, "enable_prefix_caching": False}, None),
        ({"max_num_batched_tokens": 13}, "support.drafters:KnowsMost"),
        ({"num_blocks": 30}, "support.drafters:KnowsMost"),
    ],
    ids=str,
)
def test_neighbours_are_those_of_a_run_without_rewinds(
    monkeypatch: pytest.MonkeyPatch, neighbours: Neighbours, config: dict[str, Any], method: str | None
) -> None:
    alone = neighbours.alone
    monkeypatch.setattr(KnowsMost, "outputs", {name: seen.tokens for name, seen in alone.items()})
    speculation = None if method is None else Speculation(method, adaptive=False)
    crowded = tiny_engine(list(DIALECTS.values()), speculation=speculation, **config)
    crowd = run(crowded, neighbours.requests, preempt=0.1)
    for name, seen in crowd.items():
        assert seen.error is None
        assert (seen.tokens, seen.logprobs) == (alone[name].tokens, alone[name].logprobs)
    assert len(neighbours.rewound) > 10
    if method is not None:
        assert any(stats.accepted for stats in crowded.load().scheduler_stats.drafts)


def backs(output: list[int], forbids: list[list[int]]) -> list[Any]:
    return [rewinding.found(output[:length], forbids) for length in range(1, len(output) + 1)]
