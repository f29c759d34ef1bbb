// Operations of all threads of a block: sums and prefixes; and numbers that rank and weigh logits.
//
// Functions named block_* contain barriers, so every thread of the block must call them. A block has whole warps, 32 at most.
#pragma once

#include "row_math.h"

typedef unsigned long long u64;
typedef unsigned int u32;

// At most 64 registers a thread: a multiprocessor has room for 1,024 threads.
#define FDLP_KERNEL extern "C" __global__ void __launch_bounds__(1024)

namespace fdlp {

constexpr int kWarpSize = 32, kMostWarps = 32;
constexpr u32 kEveryLane = 0xffffffffu;

__device__ inline int lane() { return threadIdx.x & (kWarpSize - 1); }
__device__ inline int warp() { return threadIdx.x / kWarpSize; }
__device__ inline int warps() { return blockDim.x / kWarpSize; }

__device__ inline float minus_infinity() { return with_bits_of<float>(0xff800000u); }

// combine(a, b) must not depend on the order of its arguments; `none` changes nothing.
template <class Value, class Combine>
__device__ Value block_reduce(Value value, Value none, const Combine& combine) {
    __shared__ Value of_warps[kMostWarps];
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        value = combine(value, __shfl_xor_sync(kEveryLane, value, distance));
    }
    __syncthreads();  // an earlier call's values have been read
    if (lane() == 0) of_warps[warp()] = value;
    __syncthreads();
    Value whole = none;
    for (int w = 0; w < warps(); ++w) whole = combine(whole, of_warps[w]);
    return whole;
}

__device__ __noinline__ u64 block_sum(u64 value) {
    return block_reduce<u64>(value, 0, [](u64 a, u64 b) { return a + b; });
}

__device__ __noinline__ u64 block_max(u64 value) {
    return block_reduce<u64>(value, 0, [](u64 a, u64 b) { return a > b ? a : b; });
}

// Sum of the values of this thread's warp up to and including it.
__device__ inline u64 warp_prefix(u64 value) {
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const u64 other = __shfl_up_sync(kEveryLane, value, distance);
        if (lane() >= distance) value += other;
    }
    return value;
}

struct Prefix {
    u64 before, total;  // sums of the threads before this one, and of all
};

__device__ __noinline__ Prefix block_prefix(u64 value) {
    __shared__ u64 of_warps[kMostWarps];
    const u64 inclusive = warp_prefix(value);
    __syncthreads();
    if (lane() == kWarpSize - 1) of_warps[warp()] = inclusive;
    __syncthreads();
    Prefix found{inclusive - value, 0};
    for (int w = 0; w < warps(); ++w) {
        if (w < warp()) found.before += of_warps[w];
        found.total += of_warps[w];
    }
    return found;
}

// Whole numbers in the order of the floats; the two zeros have one. NaN has none.
__device__ inline u32 order_of(float x) {
    const u32 bits = with_bits_of<u32>(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float float_of(u32 order) { return with_bits_of<float>(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

// exp((logit - max) / temperature) in whole steps, 0 below `least`: the weight of a draw.
struct Weigher {
    double max, inverse_temperature, least;

    __device__ u64 operator()(float logit) const {
        const double x = (static_cast<double>(logit) - max) * inverse_temperature;
        return x < kNothingBelow ? 0 : static_cast<u64>(weight_of(x, least));
    }
};

}  // namespace fdlp
