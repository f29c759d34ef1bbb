"""The CPU's stand-in for a GPU notices the mistakes that would be silent, or a hang, on a GPU."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_shim import Order, ShimDevice, ShimError, aligned

from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

KERNELS = """
#define FDLP_KERNEL extern "C" __global__ void
FDLP_KERNEL places(int* at) {
    const int block = blockIdx.y * gridDim.x + blockIdx.x;
    at[block * blockDim.x + threadIdx.x] = 1000 * blockIdx.y + 100 * blockIdx.x + threadIdx.x;
}
// Each thread reads what the next one wrote: `waits` says whether it waits for it.
FDLP_KERNEL neighbor(int* at, int waits) {
    __shared__ int shared[1024];
    shared[threadIdx.x] = threadIdx.x;
    if (waits) __syncthreads();
    at[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    shared[threadIdx.x] = -1;
}
FDLP_KERNEL divided(int* at) {
    if (threadIdx.x < 40) __syncthreads();
}
FDLP_KERNEL two_barriers(int* at) {
    if (threadIdx.x < 40) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
FDLP_KERNEL lonely(int* at) {
    if (threadIdx.x != 5) at[threadIdx.x] = __shfl_xor_sync(0xffffffffu, at[threadIdx.x], 1);
}
FDLP_KERNEL warps(int* at) {
    const int mine = threadIdx.x, lane = threadIdx.x % 32;
    const unsigned all = 0xffffffffu;
    at[mine] = __shfl_xor_sync(all, mine, 1) + __shfl_up_sync(all, 1000 * mine, 3);
    at[mine] += __shfl_sync(all, 1000000 * lane, 2, 8);
    at[mine] += __ballot_sync(all, lane == 4 || lane == 31) == 0x80000010u;
    at[mine] += __ffs(8) * 10000000 + 100 * (__syncthreads_or(mine == 63) != 0);
}
FDLP_KERNEL counts(int* at) { atomicAdd(at, 2); }
// The block that finds the others' numbers stores its own, as the last of the blocks; the counter begins again.
FDLP_KERNEL last(int* at) {
    __threadfence();
    __syncthreads();
    const unsigned last = gridDim.x - 1;
    const bool mine = threadIdx.x == 0 && atomicInc((unsigned*)at, last) == last;
    if (__syncthreads_or(mine)) at[1 + threadIdx.x % 2] = blockIdx.x + __ldcg(at);
}
FDLP_KERNEL quads(float4* at) {
    const float4 quad = at[threadIdx.x / 4];
    if (threadIdx.x % 4 == 0) at[threadIdx.x / 4] = {quad.w + 1, 2, 3, 4};
}
"""
THREADS = 64


@pytest.fixture(scope="module")
def sources() -> KernelSources:
    return KernelSources('#include "kernels.cuh"', {"kernels.cuh": KERNELS})


def run(
    sources: KernelSources, name: str, *numbers: int, order: Order = Order.FORWARD, grid: tuple[int, int] = (1, 1)
) -> list[int]:
    at = np.zeros(THREADS * grid[0] * grid[1], np.int32)
    ShimDevice(order, sources).launch(name, grid, THREADS, c_void_p(at.ctypes.data), *map(c_int32, numbers))
    return at.tolist()


@pytest.mark.parametrize("order", Order)
def test_every_thread_of_every_block_runs(sources: KernelSources, order: Order) -> None:
    expected = [1000 * y + 100 * x + thread for y in range(2) for x in range(3) for thread in range(THREADS)]
    assert run(sources, "places", order=order, grid=(3, 2)) == expected
    assert run(sources, "counts", order=order)[0] == 2 * THREADS


def test_any_block_may_be_the_last_one(sources: KernelSources) -> None:
    found = {order: run(sources, "last", order=order, grid=(7, 1))[:3] for order in Order}
    assert found[Order.FORWARD] == [0, 6, 6]
    assert found[Order.BACKWARD] == [0, 0, 0]
    assert found[Order.SHUFFLED][0] == 0


def test_four_numbers_are_loaded_and_stored_at_once(sources: KernelSources) -> None:
    at = np.arange(THREADS, dtype=np.float32)
    memory = aligned(at.nbytes, at.view(np.uint8))
    ShimDevice(sources=sources).launch("quads", (1, 1), THREADS, c_void_p(memory.ctypes.data))
    assert memory.view(np.float32).reshape(-1, 4).tolist() == [[4 * i + 4, 2, 3, 4] for i in range(THREADS // 4)]


@pytest.mark.parametrize("order", Order)
def test_a_barrier_makes_the_order_of_threads_indifferent(sources: KernelSources, order: Order) -> None:
    expected = [*range(1, THREADS), 0]
    assert run(sources, "neighbor", 1, order=order) == expected


def test_a_missing_barrier_shows_in_one_of_the_orders(sources: KernelSources) -> None:
    expected = [*range(1, THREADS), 0]
    assert any(run(sources, "neighbor", 0, order=order) != expected for order in Order)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("divided", "some threads wait for others that never come"),
        ("two_barriers", r"threads wait at lines \d+ and \d+"),
        ("lonely", "some threads wait for others that never come"),
        ("absent", "no such kernel"),
    ],
)
@pytest.mark.parametrize("order", Order)
def test_threads_that_part_at_a_barrier_are_an_error(
    sources: KernelSources, order: Order, name: str, message: str
) -> None:
    with pytest.raises(ShimError, match=f"{name}: {message}"):
        run(sources, name, order=order)


@pytest.mark.parametrize("order", Order)
def test_lanes_of_a_warp_exchange_their_values(sources: KernelSources, order: Order) -> None:
    def expected(thread: int) -> int:
        lane = thread % 32
        up = thread - 3 if lane >= 3 else thread
        return (thread ^ 1) + 1000 * up + 1_000_000 * (lane // 8 * 8 + 2) + 1 + 4 * 10_000_000 + 100

    assert run(sources, "warps", order=order) == [expected(thread) for thread in range(THREADS)]


@pytest.mark.parametrize("threads", [0, 33, 2048])
def test_blocks_have_whole_warps(sources: KernelSources, threads: int) -> None:
    at = (ctypes.c_int32 * 1)()
    with pytest.raises(ShimError, match="a block has whole warps, 32 at most"):
        ShimDevice(sources=sources).launch("places", (1, 1), threads, c_void_p(ctypes.addressof(at)))


COPIES = """
#include "instructions.cuh"
// Each thread copies four numbers, and zeros after the last one; `waits` says whether it waits for them.
FDLP_KERNEL later(int* at, int waits) {
    int* mine = reinterpret_cast<int*>(fdlp::launch_memory()) + 4 * threadIdx.x;
    fdlp::copy_later(mine, at + 4 * threadIdx.x, threadIdx.x < blockDim.x / 2);
    fdlp::end_copies();
    if (waits) fdlp::wait_for_copies();
    for (int i = 0; i < 4; ++i) at[4 * threadIdx.x + i] = mine[i];
}
// Matrix i has 100 i + 10 row + column.
FDLP_KERNEL matrices(unsigned* at, int transposed) {
    unsigned short* mine = reinterpret_cast<unsigned short*>(fdlp::launch_memory()) + 8 * threadIdx.x;
    for (int i = 0; i < 8; ++i) mine[i] = 100 * (threadIdx.x / 8) + 10 * (threadIdx.x % 8) + i;
    unsigned loaded[4];
    if (transposed) fdlp::load_transposed(loaded, mine); else fdlp::load_matrices(loaded, mine);
    for (int i = 0; i < 4; ++i) at[4 * threadIdx.x + i] = loaded[i];
}
"""


def run_with_memory(name: str, threads: int, shared: int, number: int) -> NDArray[np.int32]:
    at = np.arange(1, 4 * threads + 1, dtype=np.int32)
    device = ShimDevice(Order.SHUFFLED, KernelSources(COPIES, KernelSources.attention().headers))
    device.launch(name, (1, 1), threads, c_void_p(at.ctypes.data), c_int32(number), shared=shared)
    return at


def test_copies_are_there_after_they_are_waited_for_alone() -> None:
    expected = [*range(1, 4 * 16 + 1), *[0] * (4 * 16)]
    assert run_with_memory("later", 32, 512, 1).tolist() == expected
    assert run_with_memory("later", 32, 512, 0).tolist() == [-1] * (4 * 32)


def test_memory_beyond_the_launchs_is_an_error() -> None:
    with pytest.raises(ShimError, match="later: memory beyond the launch's was written"):
        run_with_memory("later", 32, 512 - 16, 1)


@pytest.mark.parametrize("transposed", [0, 1])
def test_lanes_have_their_parts_of_matrices(transposed: int) -> None:
    """The figure "ldmatrix fragment layout" of the PTX ISA."""
    found = run_with_memory("matrices", 32, 512, transposed).view(np.uint16).reshape(32, 4, 2)
    lane, matrix, odd = np.ogrid[:32, :4, :2]
    row, column = lane // 4, 2 * (lane % 4) + odd
    row, column = (column, row) if transposed else (row, column)
    np.testing.assert_array_equal(found, 100 * matrix + 10 * row + column)
