"""Drafts from other answers: in an engine, the output is that of plain steps, and clients share nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.sequences import Ran, request, run_to_end, sequence, tiny_engine

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.drafters import suffix
from fastdeploy_lp.worker.drafters.suffix import PORTION, SuffixDrafter
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sequence import Sequence

SETTINGS = Speculation("suffix", adaptive=False)
# Few enough that sequences are preempted.
FEW_BLOCKS = 30


def engine(*, drafts: bool = True, **config: Any) -> EngineCore:
    return tiny_engine(speculation=SETTINGS if drafts else None, **config)


def accepted(core: EngineCore) -> dict[str, int]:
    return {stats.kind: stats.accepted for stats in core.load().scheduler_stats.drafts}


def varied(count: int) -> list[AddRequest]:
    """Requests of three clients, few prompts of which differ."""
    rng = random.Random(7)
    prompts = [[rng.randrange(512) for _ in range(rng.choice([3, 6, 17]))] for _ in range(5)]
    made = []
    for index in range(count):
        sampling: dict[str, Any] = {"temperature": 0.7, "seed": index % 4} if index % 3 == 0 else {}
        if rng.random() < 0.4:
            sampling |= {"logprobs": rng.randrange(3), "frequency_penalty": rng.choice([0.0, 0.7])}
        if rng.random() < 0.2:
            sampling["stop_token_ids"] = rng.sample(range(512), 12)
        client = f"client {rng.randrange(3)}"
        made.append(
            request(f"r{index}", rng.choice(prompts), client=client, max_tokens=rng.randrange(5, 24), **sampling)
        )
    return made


@pytest.fixture(scope="module")
def plain() -> dict[str, Ran]:
    return run_to_end(engine(drafts=False), varied(60))


@pytest.mark.parametrize("config", [{}, {"num_blocks": FEW_BLOCKS}, {"max_num_batched_tokens": 13}], ids=str)
def test_tokens_and_logprobs_are_those_of_single_steps(plain: dict[str, Ran], config: dict[str, Any]) -> None:
    core = engine(**config)
    assert run_to_end(core, varied(60)) == plain
    assert sum(accepted(core).values()) > 0
    assert bool(core.scheduler.num_preemptions) == ("num_blocks" in config)


def drafted(core: EngineCore, made: AddRequest) -> int:
    """Draft tokens of a request that runs alone."""
    core.add(made)
    return sum(step.drafted for _ in range(99) if core.has_work for step in core.step().steps)


def test_the_second_answer_to_a_prompt_is_drafted() -> None:
    core = engine()
    assert drafted(core, request("first", [1, 2, 3], max_tokens=30)) == 0
    assert drafted(core, request("second", [1, 2, 3], max_tokens=30)) > 0
    # The first token comes from the prompt; all others are drafted but each step's last one.
    assert sum(accepted(core).values()) >= 25
    # A whole match exists as soon as the prompt and the answer have its length.
    assert set(accepted(core)) == {suffix.MATCHES.several, suffix.MATCHES.whole}


@pytest.mark.parametrize(
    ("client", "fields", "expected"),
    [("a", {}, True), ("b", {}, False), ("", {}, False), ("a", {"speculative": False}, False)],
)
def test_no_other_client_has_drafts_of_an_answer(client: str, fields: dict[str, Any], expected: bool) -> None:
    core = engine()
    run_to_end(core, [request("first", [1, 2, 3], max_tokens=30, client="a")])
    assert (drafted(core, request("second", [1, 2, 3], max_tokens=30, client=client, **fields)) > 0) == expected


def test_an_answer_without_speculation_is_not_kept() -> None:
    core = engine()
    run_to_end(core, [request("first", [1, 2, 3], max_tokens=30, speculative=False)])
    assert drafted(core, request("second", [1, 2, 3], max_tokens=30)) == 0


def test_an_aborted_answer_is_kept_up_to_its_last_token() -> None:
    core = engine()
    core.add(request("first", [1, 2, 3], max_tokens=30))
    tokens = [token for _ in range(9) for step in core.step().steps for token in step.token_ids]
    core.abort(["first"])
    made = SuffixDrafter(SETTINGS)
    follows(made, [1, 2, 3], tokens)
    made.begin_step(1, 0.0)
    assert drafts(made, [1, 2, 3], tokens[:1]) == tokens[1:]
    assert drafted(core, request("second", [1, 2, 3], max_tokens=30)) >= len(tokens) - 2


def follows(made: SuffixDrafter, prompt: list[int], output: list[int], slot: int = 0) -> Sequence:
    """A sequence that entered without output, and left."""
    ran = sequence(prompt, slot=slot, max_model_len=100_000)
    made.enter(ran)
    ran.output_token_ids = list(output)
    made.leave(slot)
    return ran


def drafts(made: SuffixDrafter, prompt: list[int], output: list[int], count: int = 64) -> list[int] | None:
    draft = made.draft(sequence(prompt, slot=0, output=output), count)
    return None if draft is None else draft.tokens


def test_a_preempted_answer_is_kept_once_and_matched_over_the_break() -> None:
    made = SuffixDrafter(SETTINGS)
    ran = follows(made, [1, 2, 3], [10, 11, 12, 13])
    made.begin_step(1, 0.0)
    ran.slot = 5
    made.enter(ran)
    ran.output_token_ids = [*ran.output_token_ids, 14, 15]
    made.leave(5)
    made.begin_step(1, 0.0)
    assert drafts(made, [1, 2, 3], [10]) == [11, 12, 13]
    assert drafts(made, [1, 2, 3], [10, 11, 12, 13]) == [14, 15]
    # If the first part were stored again, it would outvote this one.
    follows(made, [9, 9], [11, 12, 70])
    made.begin_step(1, 0.0)
    assert drafts(made, [8], [11, 12]) == [70]


def test_long_answers_are_indexed_in_portions() -> None:
    made, answer = SuffixDrafter(SETTINGS), list(range(1000, 1000 + 3 * PORTION))
    follows(made, [1, 2, 3], answer)
    assert drafts(made, [1, 2, 3], answer[:4]) is None
    made.begin_step(1, 0.0)
    assert drafts(made, [1, 2, 3], answer[:4], 3) == answer[4:7]
    assert drafts(made, [1, 2, 3], answer[:-4], 3) is None
    for _ in range(3):
        made.begin_step(1, 0.0)
    for end in range(4, len(answer), 50):
        found = drafts(made, [1, 2, 3], answer[:end], 3)
        assert found
        assert answer[end:][: len(found)] == found


def test_of_many_ended_answers_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_WAITING", 100)
    made = SuffixDrafter(SETTINGS)
    for index in range(20):
        follows(made, [1, 2, 3], [1000 * index + place for place in range(50)])
    for _ in range(9):
        made.begin_step(1, 0.0)
    found = [drafts(made, [1, 2, 3], [1000 * index, 1000 * index + 1], 1) for index in range(20)]
    assert found[:17] == [None] * 17
    assert found[17:] == [[1000 * index + 2] for index in range(17, 20)]


def test_the_oldest_answers_make_room() -> None:
    made = SuffixDrafter(Speculation("suffix", suffix_max_tokens=10_000))
    for index in range(30):
        follows(made, [1, 2, 3], [1000 * index + place for place in range(900)])
        made.begin_step(1, 0.0)
        made.begin_step(1, 0.0)
    kept = [index for index in range(30) if drafts(made, [4], [1000 * index + 700, 1000 * index + 701])]
    assert kept[-1] == 29
    assert 9 <= len(kept) <= 11
    assert kept == list(range(kept[0], 30))
