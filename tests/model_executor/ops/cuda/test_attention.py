"""The kernels of attention on the CPU, against attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import TOLERANCE, Crowd, as_floats, same_bits_any_way
from gpu_check_kernels import shim_device
from numpy.typing import NDArray
from support.paged_attention import VARIANTS, crowd_of

from fastdeploy_lp.model_executor.ops.cuda import attention_kernels
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import SPLIT_KEYS, HeadShape, TilePlan
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

GROUPS = (1, 2, 3, 4, 6, 7, 8, 16)
BLOCK_SIZES = (32, 64, 128)
SMALL = HeadShape(3, 1, 32)


def check(crowd: Crowd, chunks: Sequence[tuple[int, int, int]], absent: int = 0) -> None:
    """Runs a pass and compares its results with those in float64."""
    for chunk, found in zip(chunks, crowd.run(chunks, absent=absent), strict=True):
        np.testing.assert_allclose(
            as_floats(found, crowd.element), crowd.expected(*chunk), atol=TOLERANCE[crowd.element], rtol=0
        )


# All groups with the shortest heads; all variants with two groups, an even and an odd one.
GENERATED = dict.fromkeys(
    [*(("bfloat16", 32, group) for group in GROUPS), *((*each, group) for each in VARIANTS for group in (GROUPS[1], 7))]
)


@pytest.mark.parametrize(("element", "head_dim", "group"), [*GENERATED])
def test_generation(element: str, head_dim: int, group: int) -> None:
    """One token each, of contexts at the edges of blocks and splits, and rows without a sequence."""
    kv_heads = 2 if group < 3 else 1
    size = BLOCK_SIZES[(group + head_dim // 32) % 3]
    lengths = [1, size - 1, size, size + 1, SPLIT_KEYS, SPLIT_KEYS + 1]
    # Three splits; with float32, products take long on the CPU.
    lengths += [] if element == "float32" else [3 * SPLIT_KEYS - 3]
    crowd = crowd_of(HeadShape(group * kv_heads, kv_heads, head_dim), element, size, lengths, seed=group)
    check(crowd, crowd.next_tokens(*range(len(lengths))), absent=2)


CONTINUED = (*VARIANTS[:3:2], ("float32", 32))


@pytest.mark.parametrize(
    ("element", "head_dim", "group"), [(*CONTINUED[number % 3], group) for number, group in enumerate(GROUPS)]
)
def test_prompts_that_continue_after_a_cached_part(element: str, head_dim: int, group: int) -> None:
    """Several in one pass: short, long, beginning at 0 and in the middle of a block."""
    size = BLOCK_SIZES[group % 3]
    crowd = crowd_of(HeadShape(group, 1, head_dim), element, size, [9, size + 3, 2 * size, SPLIT_KEYS + 40], seed=group)
    chunks = [(1, size, size + 3), (0, 0, 9), (2, size - 5, size + 15), (3, SPLIT_KEYS - 8, SPLIT_KEYS + 12)]
    for sequence, start, _ in chunks:
        crowd.fill(sequence, start)
    check(crowd, chunks)


def test_keys_and_values_are_written_to_their_places_alone() -> None:
    crowd = crowd_of(HeadShape(2, 2, 32), "float32", 32, [50, 3])
    expected = replace(crowd)
    for sequence, length in enumerate(crowd.lengths):
        expected.fill(sequence, length)
    crowd.run([(1, 0, 3), (0, 0, 50)], absent=1)
    np.testing.assert_array_equal(np.isnan(crowd.keys), np.isnan(expected.keys))
    np.testing.assert_allclose(crowd.keys, expected.keys, atol=1e-6)
    np.testing.assert_array_equal(crowd.values, expected.values)


@pytest.mark.parametrize("filler", [np.inf, -np.inf, 0.0])
def test_unused_places_of_the_cache_do_not_count(filler: float) -> None:
    def results(filler: float) -> list[NDArray[Any]]:
        crowd = crowd_of(SMALL, "bfloat16", 32, [33, 40, 100], filler=filler)
        crowd.fill(2, 60)
        return crowd.run([*crowd.next_tokens(0, 1), (2, 60, 100)])

    same(results(filler), results(np.nan))


def test_what_another_block_left_in_shared_memory_does_not_count() -> None:
    crowd, faulty = (crowd_of(SMALL, "bfloat16", 32, [300]) for _ in range(2))
    faulty.qkv[0][:] = np.nan
    assert np.isnan(as_floats(faulty.run([(0, 0, 300)])[0], "bfloat16")).all()
    check(crowd, [(0, 0, 300)])


def same(mine: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


# Those of `CUTS`, several in one prompt.
CUTS = ((1, 16, 17, SPLIT_KEYS - 1), (SPLIT_KEYS,), (SPLIT_KEYS + 1, SPLIT_KEYS + 2, 600), (7, 40, 261, 699))


def test_bits_do_not_depend_on_how_a_prompt_is_cut_or_generated() -> None:
    device = shim_device("forward", KernelSources.attention(*VARIANTS))
    assert all(same_bits_any_way(device, "bfloat16", 32, [3], CUTS))


def test_bits_do_not_depend_on_the_size_of_splits_within_a_chunk() -> None:
    """The splits of a context of more than 8,192 tokens are larger, and a chunk may have tokens of both kinds."""
    limit = 8192
    crowd = crowd_of(HeadShape(2, 1, 32), "bfloat16", 128, [limit + 6])
    crowd.fill(0, limit - 4)
    (whole,) = crowd.run([(0, limit - 4, limit + 6)])
    parts = [crowd.run([(0, start, start + 1)])[0] for start in range(limit - 4, limit + 6)]
    same([whole], [np.concatenate(parts)])
    check(crowd, [(0, limit - 4, limit + 6)])


def test_bits_do_not_depend_on_the_batch() -> None:
    lengths = [1, 31, 32, 300, 700]
    crowd = crowd_of(HeadShape(7, 1, 32), "bfloat16", 32, lengths)
    chunks = crowd.next_tokens(*range(len(lengths)))
    together = crowd.run(chunks, absent=3)
    for chunk, found in zip(chunks, together, strict=True):
        same(crowd.run([chunk]), [found])
    same(crowd.run(chunks[::-1]), together[::-1])


def test_bits_do_not_depend_on_how_many_splits_a_block_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = crowd_of(HeadShape(1, 1, 32), "bfloat16", 32, [1_100])
    (whole,) = crowd.run([(0, 0, 1_100)])
    for blocks in (1, 2, 3):
        monkeypatch.setattr(attention_kernels, "SPLIT_BLOCKS", blocks)
        same(crowd.run([(0, 1_099, 1_100)]), [whole[-1:]])


@pytest.mark.parametrize("order", ["backward", "shuffled"])
@pytest.mark.parametrize(("element", "head_dim"), [("bfloat16", 32), ("float32", 32)])
def test_bits_do_not_depend_on_the_order_of_threads(order: str, element: str, head_dim: int) -> None:
    def results(order: str) -> list[NDArray[Any]]:
        crowd = crowd_of(HeadShape(3, 1, head_dim), element, 32, [300, 30], order=order)
        crowd.fill(1, 10)
        return crowd.run([*crowd.next_tokens(0), (1, 10, 30)])

    same(results(order), results("forward"))


@pytest.mark.parametrize("scale", [1e-20, 30.0, 1e15])
def test_scores_of_any_size_have_a_softmax(scale: float) -> None:
    crowd = crowd_of(SMALL, "bfloat16", 32, [700], scale=scale)
    (found,) = crowd.run(crowd.next_tokens(0))
    expected = crowd.expected(0, 699, 700) / scale
    np.testing.assert_allclose(as_floats(found, "bfloat16") / scale, expected, atol=TOLERANCE["bfloat16"])


def test_keys_that_grow_along_the_context() -> None:
    """Each tile has the greatest score yet, so all that is summed already is scaled down again and again."""
    crowd = crowd_of(SMALL, "bfloat16", 32, [900])
    crowd.qkv[0][:, 3] *= np.linspace(0.0, 40.0, 900)[:, None]
    crowd.qkv[0][:, :3] = np.abs(crowd.qkv[0][:, :3])
    check(crowd, crowd.next_tokens(0))


def test_the_launches_of_generation_depend_on_neither_contexts_nor_blocks() -> None:
    """A CUDA graph repeats launches with the numbers that it was recorded with."""
    launches: list[Any] = []

    class Recorder:
        """A device that computes nothing, with all of its memory at one address."""

        address = 64

        def launch(self, kernel: str, grid: tuple[int, int], threads: int, given: Any, shared: int) -> None:
            launches.append((kernel, grid, threads, shared, bytes(given)))

        def upload(self, _: object) -> Recorder:
            return self

        def empty(self, _: int) -> Recorder:
            return self

        def read(self, *_: object) -> None:
            pass

    plan, found = TilePlan.of_generation(3, 1000, SMALL), []
    for lengths in ([1, 1, 1], [1000, 500, 7]):
        launches.clear()
        crowd = Crowd(Recorder(), SMALL, "bfloat16", 32, lengths)
        crowd.width = 32
        crowd.tables = np.zeros((3, 32), np.int32)
        crowd.run([(index, length - 1, length) for index, length in enumerate(lengths)], plan)
        found.append(list(launches))
    assert found[0] == found[1]
    assert [(name, grid) for name, grid, *_ in launches] == [
        ("fdlp_store_bfloat16_32", (3, 1)),
        ("fdlp_split_bfloat16_32", (3, 4)),
        ("fdlp_merge_bfloat16_32", (3, 1)),
    ]
