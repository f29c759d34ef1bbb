// Finds where weights, added from the greatest logit on or from the first token on, reach a sum. Nothing is sorted.
//
// Weights are whole numbers, so a sum is exact in any order, and so is its comparison with a sum rounded up.
#pragma once

#include "block.cuh"

namespace fdlp {

// The least whole number that is not below a sum of weights.
__device__ inline u64 whole_from(double sum) { return sum < 1.0 ? 1 : static_cast<u64>(ceil(sum)); }

struct Selected {
    u32 order;        // of the logit at which the goal is reached
    u64 above, at;    // weights of greater logits, and of those equal to it
    u64 goal, total;  // of all weights
};

// Digits, from the highest, by which a 32-bit order is found.
constexpr int kDigits = 3, kMostBins = 2048;

// The order at which the weights reach goal_of(total), or their total if that is less; all 0 if that is 0.
// order_of_logit(logit) ranks; weigh(token, logit) returns a whole number.
template <class Order, class Weigh, class GoalOf>
__device__ Selected select(const float* row, int size, const Order& order_of_logit, const Weigh& weigh, const GoalOf& goal_of) {
    __shared__ u64 bins[kMostBins];
    __shared__ u32 found_digit;
    __shared__ u64 found_above, found_at;
    Selected found{0, 0, 0, 0, 0};
#pragma unroll 1
    for (int digit = 0; digit < kDigits; ++digit) {
        const int bits = digit < 2 ? 11 : 10, shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
        const u32 last_bin = (1u << bits) - 1;
        for (int bin = threadIdx.x; bin < kMostBins; bin += blockDim.x) bins[bin] = 0;
        __syncthreads();
        visit(row, size, [&](int token, float logit) {
            const u32 order = order_of_logit(logit);
            if (digit > 0 && order >> (shift + bits) != found.order) return;
            const u64 weight = weigh(token, logit);
            if (weight != 0) atomicAdd(&bins[order >> shift & last_bin], weight);
        });
        __syncthreads();
        // Each thread has some bins, the first one the greatest.
        const int share = (kMostBins + blockDim.x - 1) / blockDim.x, first = kMostBins - 1 - threadIdx.x * share;
        u64 mine = 0;
        for (int bin = first; bin > first - share && bin >= 0; --bin) mine += bins[bin];
        const Prefix prefix = block_prefix(mine);
        if (digit == 0) {
            const u64 goal = goal_of(prefix.total);
            found.total = prefix.total;
            found.goal = goal < prefix.total ? goal : prefix.total;
        }
        if (found.total == 0) return found;
        u64 above = found.above + prefix.before;
        if (above < found.goal && above + mine >= found.goal) {
            int bin = first;
            while (above + bins[bin] < found.goal) above += bins[bin--];
            found_digit = static_cast<u32>(bin);
            found_above = above;
            found_at = bins[bin];
        }
        __syncthreads();
        found.order = found.order << bits | found_digit;
        found.above = found_above;
        found.at = found_at;
    }
    return found;
}

// The first token at which the weights reach goal_of(total), or their total if that is less; `size` if that is 0.
// weigh(token) returns a whole number.
template <class Weigh, class GoalOf>
__device__ int find_token(int size, const Weigh& weigh, const GoalOf& goal_of) {
    __shared__ u64 of_warps[kMostWarps];
    __shared__ int found;
    int begin = 0, end = size;
    u64 before = 0, goal = 0;
    // Each warp adds up a part of the row, then a part of the part in which the goal is reached.
#pragma unroll 1
    for (int level = 0; level < 2; ++level) {
        const int even = (end - begin + warps() - 1) / warps();
        const int part = (even + kWarpSize - 1) / kWarpSize * kWarpSize;
        const int first = begin + warp() * part, last = first + part < end ? first + part : end;
        u64 mine = 0;
#pragma unroll 4
        for (int token = first + lane(); token < last; token += kWarpSize) mine += weigh(token);
        mine = __shfl_sync(kEveryLane, warp_prefix(mine), kWarpSize - 1);
        __syncthreads();
        if (lane() == 0) of_warps[warp()] = mine;
        __syncthreads();
        if (level == 0) {
            u64 total = 0;
            for (int w = 0; w < warps(); ++w) total += of_warps[w];
            if (total == 0) return size;
            goal = goal_of(total);
            goal = goal < total ? goal : total;
        }
        int reached = 0;
        while (before + of_warps[reached] < goal) before += of_warps[reached++];
        begin += reached * part;
        end = begin + part < end ? begin + part : end;
    }
    if (warp() == 0) {
        for (int tile = begin;; tile += kWarpSize) {
            const int token = tile + lane();
            const u64 sum = before + warp_prefix(token < end ? weigh(token) : 0);
            const u32 reached = __ballot_sync(kEveryLane, sum >= goal);
            if (reached != 0) {
                if (lane() == 0) found = tile + __ffs(reached) - 1;
                break;
            }
            before = __shfl_sync(kEveryLane, sum, kWarpSize - 1);
        }
    }
    __syncthreads();
    return found;
}

}  // namespace fdlp
