"""The CPU's stand-in for a GPU notices the mistakes that would be silent, or a hang, on a GPU."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p

import numpy as np
import pytest
from support.cuda_shim import Order, ShimDevice, ShimError

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
