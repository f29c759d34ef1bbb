"""Prompts that agree with a part of a known block: its keys and values are copied, and the answers keep their bits."""

from __future__ import annotations

from typing import Any

from support.sequences import request, run_to_end, tiny_engine

from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

BLOCK_SIZE = 16
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5]


def engine(**config: Any) -> EngineCore:
    return tiny_engine(**{"max_num_seqs": 4, "max_model_len": 64, "block_size": BLOCK_SIZE, **config})


def branch(cut: int, **params: Any) -> AddRequest:
    """The first `cut` tokens of the prompt, and others after them."""
    prompt = [*PROMPT[:cut], 99, 98, 97]
    return request(
        f"after {cut}", prompt, **{"max_tokens": 4, "logprobs": 3, "temperature": 1.0, "seed": cut, **params}
    )


def test_a_branch_at_any_token_is_answered_as_with_a_cold_cache(executor: str) -> None:
    cold, warm = engine(enable_prefix_caching=False), engine()
    run_to_end(warm, [request("trunk", PROMPT, max_tokens=2)])
    for cut in range(len(PROMPT) + 1):
        before = warm.blocks.num_hit_tokens
        (found,) = run_to_end(warm, [branch(cut)]).values()
        (alone,) = run_to_end(cold, [branch(cut)]).values()
        assert found.token_ids == alone.token_ids, f"after {cut} tokens"
        # Paddle's own products may round by the number of rows.
        assert executor == "paddle" or found == alone, f"after {cut} tokens"
        # One token of a block of 16 is not worth a copy.
        hit = warm.blocks.num_hit_tokens - before
        assert hit == (cut - 1 if cut % BLOCK_SIZE == 1 else cut)


def test_branches_in_one_step_do_not_disturb_each_other_or_the_trunk() -> None:
    cold, warm = engine(enable_prefix_caching=False), engine()
    run_to_end(warm, [request("trunk", PROMPT, max_tokens=1)])
    together = [branch(cut) for cut in (5, 20, 31)] + [request("again", PROMPT, max_tokens=6)]
    ran = run_to_end(warm, together)
    alone = {name: each for one in together for name, each in run_to_end(cold, [one]).items()}
    assert ran == alone


def test_a_block_that_is_reused_in_the_same_step_was_copied_before() -> None:
    # Just enough blocks for one sequence of full length: all others are evicted for it.
    cold, warm = engine(enable_prefix_caching=False), engine(num_blocks=1 + 4)
    for length in (20, 40, 60, 20, 60):
        for cut in (32, 9, 25, 18):
            one = branch(cut, max_tokens=length - cut) if length > cut + 3 else branch(cut)
            ((name, found),) = run_to_end(warm, [one]).items()
            assert found == run_to_end(cold, [one])[name]
    assert warm.blocks.num_hit_tokens > 0
    assert warm.blocks.num_free == warm.blocks.num_total


def test_a_prompt_whose_every_token_is_asked_for_copies_nothing() -> None:
    core = engine()
    run_to_end(core, [request("trunk", PROMPT, max_tokens=1)])
    before = core.blocks.num_hit_tokens
    run_to_end(core, [branch(9, prompt_logprobs=1)])
    assert core.blocks.num_hit_tokens == before


def test_a_clients_tokens_are_not_told_to_another_one() -> None:
    """Whole blocks are shared by all: nobody guesses 16 tokens at once."""
    core = engine()
    run_to_end(core, [request("trunk", PROMPT, max_tokens=1, client="one")])
    for client, cached in (("another", 16), ("one", 25)):
        core.add(branch(25, client=client))
        (step,) = core.step().steps
        assert step.num_cached_tokens == cached
        run_to_end(core)
