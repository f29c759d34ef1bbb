// The most likely tokens of a row, in descending order: they are among those of its parts.
#pragma once

#include "select.cuh"

namespace fdlp {

constexpr int kMostListed = 64;

struct Lists {
    u64* listed;  // [rows, parts, count]
    int count;    // at most kMostListed

    // Ranked logits of a part, in descending order; 0 where there are no more.
    __device__ u64* of(const Place& at, int part) const { return listed + (static_cast<long long>(at.number) * at.parts + part) * count; }
};

// A logit that at least `count` tokens of the part reach: the least of the greatest logits of groups of threads. `max` is the greatest
// one of this thread.
__device__ inline float reached_by(int count, float max) {
    constexpr int kGroup = 4;
    for (int distance = 1; distance < kGroup; distance *= 2) {
        const float other = __shfl_xor_sync(kEveryLane, max, distance);
        max = other > max ? other : max;
    }
    const u32 least = ~static_cast<u32>(block_max(~order_of(max)));
    return count * kGroup <= static_cast<int>(blockDim.x) ? float_of(least) : minus_infinity();
}

// Counts the part's logits from the bound on by one digit of their order; few reach it, as a rule.
__device__ inline void count_bins(const Place& at, u32* counts, Digit digit, u32 found, float bound) {
    __syncthreads();
    for (int bin = threadIdx.x; bin < kMostBins; bin += blockDim.x) counts[bin] = 0;
    __syncthreads();
    visit(at, [&](int, float logit) {
        const u32 order = order_of(logit);
        if (!(logit < bound) && digit.follows(order, found)) atomicAdd(&counts[digit.bin(order)], 1u);
    });
    __syncthreads();
}

// Writes the part's `count` greatest logits.
__device__ inline void list_part(const Place& at, float bound, int count, u64* listed) {
    __shared__ u32 counts[kMostBins];
    __shared__ u64 unsorted[kMostListed];
    __shared__ int filled;
    const int most = at.end - at.begin < count ? at.end - at.begin : count;
    Selected found{0, 0, 0, static_cast<u64>(most)};
#pragma unroll 1
    for (int number = 0; number < kDigits; ++number) {
        count_bins(at, counts, Digit{number}, found.order, bound);
        find_digit(Digit{number}, [&](int bin) -> u64 { return counts[bin]; }, found);
    }
    const u64 ties = found.goal - found.above;
    int last_token = at.end;
    if (ties < found.at) {
        const auto equal = [&](int token) -> u64 { return order_of(at.row[token]) == found.order; };
        last_token = find_token(at.begin, at.end, 0, ties, equal).token;
    }
    if (threadIdx.x == 0) filled = 0;
    __syncthreads();
    visit(at, [&](int token, float logit) {
        const u32 order = order_of(logit);
        if (order < found.order || (order == found.order && token > last_token)) return;
        unsorted[atomicAdd(&filled, 1)] = ranked(logit, token);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < most; i += blockDim.x) {
        int place = 0;
        for (int other = 0; other < most; ++other) place += unsorted[other] > unsorted[i];
        listed[place] = unsorted[i];
    }
}

// The first pass over a row of which `count` tokens are listed.
__device__ inline void scan_and_list(const Place& at, const Lists& lists, int count) {
    u64* listed = lists.of(at, at.part);
    for (int i = threadIdx.x; i < lists.count; i += blockDim.x) listed[i] = 0;
    const float bound = reached_by(count, scan_part(at));
    if (count > 0) list_part(at, bound, count, listed);
}

// Calls take(place, ranked) for each of the `count` greatest logits of the row, each on one thread.
template <class Take>
__device__ void merge_lists(const Lists& lists, const Place& at, int count, const Take& take) {
    for (int i = threadIdx.x; i < at.parts * lists.count; i += blockDim.x) {
        const u64 mine = lists.of(at, i % at.parts)[i / at.parts];
        int place = mine == 0 ? count : 0;
        for (int part = 0; part < at.parts && place < count; ++part) {
            const u64* listed = lists.of(at, part);
            for (int other = 0; other < lists.count && listed[other] > mine; ++other) ++place;
        }
        if (place < count) take(place, mine);
    }
}

}  // namespace fdlp
